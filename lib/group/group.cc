// SPDX-License-Identifier: MIT
#include "group/group.h"

#include <cstddef>
#include <cstring>
#include <utility>

namespace sharpi {
namespace {

/// What ranks say first. The number changes with what later messages are made of.
struct Hello {
  uint64_t version = 0x5348415250490002u;
  uint32_t rank = 0, n_ranks = 0;
};

/// What rank 0 answers: its own, and that of the first one who says something else.
struct Answer {
  Hello first, other;
  uint32_t rank = 0;  // which one that is; 0 = nobody
};

bool agrees(const Hello& said, uint32_t rank, const Hello& first) {
  return said.version == first.version && said.rank == rank && said.n_ranks == first.n_ranks;
}

Status check(const Answer& a) {
  if (a.rank == 0) return Status::ok();
  if (a.other.version != a.first.version) {
    return Status::error(Code::kMismatch, "rank %u is of another build of the library than rank 0",
                         a.rank);
  }
  return Status::error(Code::kMismatch,
                       "rank %u says that it is rank %u of %u, and rank 0 that they are %u", a.rank,
                       a.other.rank, a.other.n_ranks, a.first.n_ranks);
}

}  // namespace

Status GroupCall::entered() const {
  if (lock_.owns_lock()) return Status::ok();
  return Status::error(Code::kBusy,
                       "another call is using the group; its calls are made one at a time, in the "
                       "same order on every rank");
}

Result<std::shared_ptr<Group>> Group::create(std::unique_ptr<Transport> transport,
                                             const GroupShape& shape) {
  std::shared_ptr<Group> g(new Group(std::move(transport), shape));
  const Status greeted = g->greet();
  if (!greeted.is_ok() && !g->is_lost()) g->transport_->abandon();
  SHARPI_TRY(greeted);
  return g;
}

/// All ranks hear all, and neighbours each other, so that ways which a transport makes when they
/// are first used are there before the first call.
Status Group::greet() {
  Hello own;
  own.rank = rank();
  own.n_ranks = n_ranks();
  const Deadline end = deadline(true);
  Answer answer;
  answer.first = own;
  if (!is_first()) {
    SHARPI_TRY(lose(transport_->send(0, &own, sizeof own, end), 0));
    SHARPI_TRY(lose(transport_->receive(0, &answer, sizeof answer, end), 0));
    if (answer.rank == 0 && !agrees(own, rank(), answer.first)) {
      answer.rank = rank();
      answer.other = own;
    }
  }
  for (uint32_t r = 1; is_first() && r < n_ranks(); ++r) {
    Hello said;
    SHARPI_TRY(lose(transport_->receive(r, &said, sizeof said, end), r));
    if (answer.rank != 0 || agrees(said, r, own)) continue;
    answer.rank = r;
    answer.other = said;
  }
  for (uint32_t r = 1; is_first() && r < n_ranks(); ++r)
    SHARPI_TRY(lose(transport_->send(r, &answer, sizeof answer, end), r));
  SHARPI_TRY(check(answer));
  Hello before;
  if (!is_first()) SHARPI_TRY(receive_on(&before, sizeof before));
  return is_last() ? Status::ok() : send_on(&own, sizeof own);
}

Status Group::usable() const {
  if (!is_lost()) return Status::ok();
  return Status::error(Code::kDeviceLost, "%s", why_lost_.c_str());
}

Status Group::lose(const Status& why, uint32_t other) {
  if (why.is_ok()) return why;
  why_lost_ = "the group is lost, because rank " + std::to_string(other) +
              " does not answer: " + why.text();
  lost_.store(true, std::memory_order_release);
  transport_->abandon();
  return Status::native_error(Code::kDeviceLost, why.native(), "%s", why_lost_.c_str());
}

Status Group::send_on(const void* data, uint64_t bytes) {
  SHARPI_TRY(usable());
  return lose(transport_->send(rank() + 1, data, bytes, deadline(false)), rank() + 1);
}

Status Group::receive_on(void* out, uint64_t bytes) {
  SHARPI_TRY(usable());
  return lose(transport_->receive(rank() - 1, out, bytes, deadline(false)), rank() - 1);
}

/// By way of rank 0.
Status Group::exchange(const void* own, void* all, uint64_t bytes, bool patient) {
  SHARPI_TRY(usable());
  const Deadline end = deadline(patient);
  auto* out = static_cast<std::byte*>(all);
  std::memcpy(out + rank() * bytes, own, bytes);
  if (!is_first()) {
    SHARPI_TRY(lose(transport_->send(0, own, bytes, end), 0));
    return lose(transport_->receive(0, all, n_ranks() * bytes, end), 0);
  }
  for (uint32_t r = 1; r < n_ranks(); ++r)
    SHARPI_TRY(lose(transport_->receive(r, out + r * bytes, bytes, end), r));
  for (uint32_t r = 1; r < n_ranks(); ++r)
    SHARPI_TRY(lose(transport_->send(r, all, n_ranks() * bytes, end), r));
  return Status::ok();
}

}  // namespace sharpi
