// SPDX-License-Identifier: MIT
// Version, status names, contexts and devices.
#include <memory>

#include "api/api_guard.h"
#include "api/api_handles.h"
#include "api/api_out.h"
#include "api/api_params.h"
#include "api/backends.h"
#include "api/gpu_tiers.h"
#include "plan/device_requests.h"
#include "plan/devices.h"

namespace api = sharpi::api;
using sharpi::Code;
using sharpi::Status;

uint32_t sharpi_version(void) SHARPI_NOEXCEPT {
  return SHARPI_VERSION;
}

const char* sharpi_build_info(void) SHARPI_NOEXCEPT {
  return api::build_text();
}

const char* sharpi_tier_name(sharpi_tier tier) SHARPI_NOEXCEPT {
  return sharpi::tier_name(tier);
}

const char* sharpi_status_name(sharpi_status status) SHARPI_NOEXCEPT {
  switch (status) {
    case SHARPI_OK:
      return "SHARPI_OK";
    case SHARPI_E_INVALID_ARGUMENT:
      return "SHARPI_E_INVALID_ARGUMENT";
    case SHARPI_E_OUT_OF_MEMORY:
      return "SHARPI_E_OUT_OF_MEMORY";
    case SHARPI_E_UNSUPPORTED:
      return "SHARPI_E_UNSUPPORTED";
    case SHARPI_E_NOT_FOUND:
      return "SHARPI_E_NOT_FOUND";
    case SHARPI_E_IO:
      return "SHARPI_E_IO";
    case SHARPI_E_FORMAT:
      return "SHARPI_E_FORMAT";
    case SHARPI_E_MISMATCH:
      return "SHARPI_E_MISMATCH";
    case SHARPI_E_CANCELLED:
      return "SHARPI_E_CANCELLED";
    case SHARPI_E_KV_FULL:
      return "SHARPI_E_KV_FULL";
    case SHARPI_E_DOES_NOT_FIT:
      return "SHARPI_E_DOES_NOT_FIT";
    case SHARPI_E_BUFFER_TOO_SMALL:
      return "SHARPI_E_BUFFER_TOO_SMALL";
    case SHARPI_E_STATE:
      return "SHARPI_E_STATE";
    case SHARPI_E_BUSY:
      return "SHARPI_E_BUSY";
    case SHARPI_E_DEVICE:
      return "SHARPI_E_DEVICE";
    case SHARPI_E_DEVICE_LOST:
      return "SHARPI_E_DEVICE_LOST";
    case SHARPI_E_INTERNAL:
      return "SHARPI_E_INTERNAL";
    default:
      return "SHARPI_E_?";
  }
}

sharpi_status sharpi_context_create(const sharpi_context_params* params, sharpi_context** out,
                                    sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(out, "out"));
    *out = nullptr;
    sharpi_context_params complete;
    SHARPI_TRY(api::read_params(params, &complete));
    auto handle = std::make_unique<sharpi_context>();
    SHARPI_TRY_ASSIGN(handle->p, sharpi::Context::create(complete, &api::make_backends));
    *out = handle.release();
    return Status::ok();
  });
}

void sharpi_context_destroy(sharpi_context* context) SHARPI_NOEXCEPT {
  const sharpi::CallEnvironment environment;
  delete context;
}

sharpi_status sharpi_device_info(const sharpi_context* context, uint32_t index, uint32_t flags,
                                 sharpi_device* out, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(context, "context"));
    SHARPI_TRY(api::check_out_struct(out, 200, "sharpi_device"));
    SHARPI_TRY(api::require_flags(flags, SHARPI_DEVICE_MEASURE, "flags"));
    sharpi_device device{};
    device.struct_size = sizeof device;
    SHARPI_TRY(context->p->device_info(index, flags, &device));
    api::write_out(device, out);
    return Status::ok();
  });
}

sharpi_status sharpi_device_find(const sharpi_context* context, const char* device,
                                 uint32_t* out_index, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::guard(err, [&]() -> Status {
    SHARPI_TRY(api::require(context, "context"));
    SHARPI_TRY(api::require(device, "device"));
    SHARPI_TRY(api::require(out_index, "out_index"));
    SHARPI_TRY_ASSIGN(const sharpi::DeviceIndex found,
                      sharpi::find_device(context->p->sizers(), device));
    *out_index = sharpi::index_of(found);
    return Status::ok();
  });
}
