// SPDX-License-Identifier: MIT
// Sessions as storage: capacity, lengths, checkpoints, copies, blobs and compaction.
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "api/api_guard.h"
#include "api/api_handles.h"
#include "api/api_out.h"
#include "api/api_params.h"
#include "api/session_calls.h"
#include "engine/session_blob.h"

namespace api = sharpi::api;
using sharpi::Code;
using sharpi::Session;
using sharpi::Status;

sharpi_status sharpi_session_reserve(sharpi_session* session, uint32_t n_slots,
                                     sharpi_error* err) SHARPI_NOEXCEPT {
  return api::change_session(session, err, [&](Session& s) { return s.reserve(n_slots); });
}

sharpi_status sharpi_session_truncate(sharpi_session* session, uint32_t n_tokens,
                                      sharpi_error* err) SHARPI_NOEXCEPT {
  return api::change_session(session, err, [&](Session& s) { return s.truncate(n_tokens); });
}

sharpi_status sharpi_session_checkpoint(sharpi_session* session, uint32_t pin,
                                        sharpi_error* err) SHARPI_NOEXCEPT {
  return api::change_session(session, err, [&](Session& s) -> Status {
    if (pin > 1) {
      return Status::error(Code::kInvalidArgument, "pin %u is unknown; allowed are 0 and 1", pin);
    }
    return s.checkpoint(pin == 1);
  });
}

sharpi_status sharpi_session_reachable(const sharpi_session* session, uint32_t* out, uint32_t cap,
                                       uint32_t* out_n, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::read_session(session, err, [&](const Session& s) -> Status {
    const std::vector<uint32_t> lengths = s.reachable();
    return api::copy_array(std::span<const uint32_t>(lengths), out, cap, out_n);
  });
}

sharpi_status sharpi_session_tokens(const sharpi_session* session, int32_t* out, uint32_t cap,
                                    uint32_t* out_n, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::read_session(session, err, [&](const Session& s) -> Status {
    return api::copy_array(s.tokens(), out, cap, out_n);
  });
}

sharpi_status sharpi_session_fork(const sharpi_session* session, sharpi_session** out,
                                  sharpi_error* err) SHARPI_NOEXCEPT {
  if (out != nullptr) *out = nullptr;
  return api::read_session(session, err, [&](const Session& s) -> Status {
    SHARPI_TRY(api::require(out, "out"));
    auto handle = std::make_unique<sharpi_session>();
    SHARPI_TRY_ASSIGN(handle->p, s.fork());
    *out = handle.release();
    return Status::ok();
  });
}

sharpi_status sharpi_session_save(const sharpi_session* session, void* out, uint64_t cap,
                                  uint64_t* out_len, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::read_session(session, err, [&](const Session& s) -> Status {
    SHARPI_TRY(api::check_out(out, cap, out_len));
    SHARPI_TRY_ASSIGN(const uint64_t needed, s.save_bytes());
    *out_len = needed;
    if (cap < needed) return api::too_small(cap, needed, "bytes");
    sharpi::MemorySink to(out);
    return s.save(&to, needed);
  });
}

sharpi_status sharpi_session_restore(sharpi_session* session, const void* blob, uint64_t len,
                                     sharpi_error* err) SHARPI_NOEXCEPT {
  return api::change_session(session, err, [&](Session& s) -> Status {
    SHARPI_TRY(api::require(blob, "blob"));
    sharpi::MemorySource from(blob, len);
    return s.restore(&from, len);
  });
}

namespace {

class CallbackSink final : public sharpi::BlobSink {
 public:
  CallbackSink(sharpi_write_fn write, void* user_data) : write_(write), user_data_(user_data) {}
  Status write(const void* data, uint64_t bytes) override {
    const int32_t said = write_(user_data_, data, bytes);
    if (said == 0) return Status::ok();
    return Status::native_error(Code::kIo, said,
                                "the write callback refused a piece: it returned %d", said);
  }

 private:
  sharpi_write_fn write_;
  void* user_data_;
};

class CallbackSource final : public sharpi::BlobSource {
 public:
  CallbackSource(sharpi_read_fn read, void* user_data) : read_(read), user_data_(user_data) {}
  Status read(uint64_t at, void* out, uint64_t bytes) override {
    const int32_t said = read_(user_data_, at, out, bytes);
    if (said == 0) return Status::ok();
    return Status::native_error(Code::kIo, said,
                                "the read callback failed at byte %llu: it returned %d",
                                static_cast<unsigned long long>(at), said);
  }

 private:
  sharpi_read_fn read_;
  void* user_data_;
};

Status require_callback(bool given, const char* name) {
  if (given) return Status::ok();
  return Status::error(Code::kInvalidArgument, "%s is null", name);
}

}  // namespace

sharpi_status sharpi_session_save_to(const sharpi_session* session, sharpi_write_fn write,
                                     void* user_data, uint64_t* out_len,
                                     sharpi_error* err) SHARPI_NOEXCEPT {
  return api::read_session(session, err, [&](const Session& s) -> Status {
    SHARPI_TRY(require_callback(write != nullptr, "write"));
    SHARPI_TRY_ASSIGN(const uint64_t bytes, s.save_bytes());
    if (out_len != nullptr) *out_len = bytes;
    CallbackSink to(write, user_data);
    return s.save(&to, bytes);
  });
}

sharpi_status sharpi_session_restore_from(sharpi_session* session, sharpi_read_fn read,
                                          void* user_data, sharpi_error* err) SHARPI_NOEXCEPT {
  return api::change_session(session, err, [&](Session& s) -> Status {
    SHARPI_TRY(require_callback(read != nullptr, "read"));
    CallbackSource from(read, user_data);
    return s.restore(&from, std::nullopt);
  });
}

sharpi_status sharpi_session_compact(sharpi_session* session, const sharpi_compact_params* params,
                                     sharpi_compact_report* report,
                                     sharpi_error* err) SHARPI_NOEXCEPT {
  return api::change_session(session, err, [&](Session& s) -> Status {
    if (report != nullptr) {
      SHARPI_TRY(api::check_out_struct(report, 88, "sharpi_compact_report"));
    }
    sharpi_compact_params complete;
    SHARPI_TRY(api::read_params(params, &complete));
    sharpi_compact_report done{};
    SHARPI_TRY(s.compact(complete, &done));
    if (report != nullptr) api::write_out(done, report);
    return Status::ok();
  });
}

sharpi_status sharpi_session_recall(sharpi_session* session, const sharpi_recall_params* params,
                                    sharpi_recall_report* report,
                                    sharpi_error* err) SHARPI_NOEXCEPT {
  return api::change_session(session, err, [&](Session& s) -> Status {
    if (report != nullptr) SHARPI_TRY(api::check_out_struct(report, 48, "sharpi_recall_report"));
    sharpi_recall_params complete;
    SHARPI_TRY(api::read_params(params, &complete));
    sharpi_recall_report done{};
    SHARPI_TRY(s.recall(complete, &done));
    if (report != nullptr) api::write_out(done, report);
    return Status::ok();
  });
}

sharpi_status sharpi_session_kept(const sharpi_session* session, uint32_t layer, uint32_t kv_head,
                                  uint32_t* out, uint32_t cap, uint32_t* out_n,
                                  sharpi_error* err) SHARPI_NOEXCEPT {
  return api::read_session(session, err, [&](const Session& s) -> Status {
    SHARPI_TRY(api::check_out(out, cap, out_n));
    std::vector<uint32_t> positions;
    SHARPI_TRY(s.kept(layer, kv_head, &positions));
    return api::copy_array(std::span<const uint32_t>(positions), out, cap, out_n);
  });
}
