// SPDX-License-Identifier: MIT
// Tests whose ranks are processes: each is a child of the test, which has touched nothing of the
// library before, with connections over the loopback to all others. What a rank says, line by line,
// comes back to the test, and so does how it ended.
// Thread rule: one test at a time.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_case.h"
#include "group/loopback.h"

namespace sharpi::testing {

struct DestroyGroup {
  void operator()(sharpi_group* p) const { sharpi_group_destroy(p); }
};
using GroupPtr = std::unique_ptr<sharpi_group, DestroyGroup>;

struct GroupSetup {
  uint32_t timeout_ms = 20000, load_timeout_ms = 20000;
  uint32_t batch_parts = 0;
  std::vector<uint32_t> layers;  // rank_layers
  Edit edit;
  std::function<sharpi_context*()> context;  // of the process; none = one over the CPU
};

/// One process of a group, or the only one: then there is no group.
class Rank {
 public:
  Rank(uint32_t rank, uint32_t n, std::vector<int> sockets, std::FILE* out)
      : rank_(rank), n_(n), link_(std::move(sockets)), out_(out) {}
  uint32_t rank() const { return rank_; }
  bool is_last() const { return rank_ + 1 == n_; }
  Loopback& link() { return link_; }
  void say(const std::string& line);
  /// "make: -7 rank 1 has another file".
  void say(const std::string& what, sharpi_status status, const sharpi_error& e);

  sharpi_group_params group_params(const GroupSetup& setup);
  /// Makes the group, plans and loads. False, and said, where one of them is refused.
  bool open(const std::string& path, const GroupSetup& setup);
  bool make_group(const sharpi_group_params& params);
  const sharpi_model* model() const { return loaded_.model.get(); }
  const Loaded& loaded() const { return loaded_; }
  sharpi_group* group() const { return group_.get(); }

  // On a session; what is refused is said.
  SessionPtr session();
  bool prefill(sharpi_session* s, const std::vector<int32_t>& tokens, uint32_t n_logit_rows = 1,
               sharpi_progress_fn progress = nullptr, void* user_data = nullptr);
  bool decode(sharpi_session* s, int32_t token);
  bool truncate(sharpi_session* s, uint32_t n);
  bool seed(sharpi_session* s, uint64_t seed, float temperature);
  /// The token, which all ranks say; -1.
  int32_t step(sharpi_session* s);
  /// Said by whoever has them.
  void say_logits(sharpi_session* s, uint32_t row = 0);
  uint32_t n_tokens(sharpi_session* s);

 private:
  uint32_t rank_, n_;
  Loopback link_;
  std::FILE* out_;
  GroupPtr group_;
  Loaded loaded_;
};

struct RankEnd {
  std::vector<std::string> lines;
  int exit_code = -1, signal = 0;  // of a process that was killed, or stopped to the end
};

/// Runs n processes, until all have ended or are stopped; those are killed then. A test's failed
/// expectation in one of them is a failure of the test.
std::vector<RankEnd> run_ranks(uint32_t n, const std::function<void(Rank&)>& body);

/// The last line that begins with a word; empty without.
std::string line_of(const RankEnd& rank, const std::string& word);

}  // namespace sharpi::testing
