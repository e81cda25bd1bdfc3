// SPDX-License-Identifier: MIT
#include "device/kernels.h"

namespace sharpi::device {
namespace {

Status not_by_head() {
  return Status::error(Code::kInternal, "this device keeps no rows in blocks of one head");
}

}  // namespace

Status DeviceKernels::move_head_rows(const KvMoveJob*, uint32_t, uint32_t, const Queue&) const {
  return not_by_head();
}
Status DeviceKernels::replay_scores(const ReplayParams&, const Queue&) const {
  return Status::error(Code::kInternal, "this device makes no replay scores");
}
Status DeviceKernels::take_apart(const ApartParams&, const Queue&) const {
  return not_by_head();
}
Status DeviceKernels::move_units(const UnitMoveParams&, const Queue&) const {
  return not_by_head();
}

}  // namespace sharpi::device
