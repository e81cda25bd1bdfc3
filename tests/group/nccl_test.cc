// SPDX-License-Identifier: MIT
// Messages over NCCL, without NCCL and without a GPU: its library and the driver are pretended
// (fake_nccl.c). What is held to account is who is asked for what, in which order and until when.
#include <csignal>

#include "group/fake_nccl.h"
#include "group/group.h"
#include "group/nccl_transport.h"
#include "group/rank_case.h"
#include "support/paths.h"

namespace sharpi::testing {
namespace {

const std::string kLibrary = test::build_path("tests/group/libfake_nccl.so");

FakeComm comm_of(Rank& r, uint32_t n) {
  FakeComm c{};
  c.n_ranks = static_cast<int>(n);
  c.rank = static_cast<int>(r.rank());
  for (uint32_t i = 0; i < n; ++i) c.sockets[i] = r.link().sockets()[i];
  return c;
}

NcclOptions options_of(FakeComm* c) {
  NcclOptions o;
  o.comm = c;
  o.library = o.driver = kLibrary.c_str();
  o.rank = static_cast<uint32_t>(c->rank);
  o.n_ranks = static_cast<uint32_t>(c->n_ranks);
  return o;
}

Result<std::shared_ptr<Group>> group_of(FakeComm* c, uint32_t timeout_ms) {
  SHARPI_TRY_ASSIGN(std::unique_ptr<Transport> t, make_nccl_transport(options_of(c)));
  const GroupShape shape{static_cast<uint32_t>(c->rank), static_cast<uint32_t>(c->n_ranks),
                         timeout_ms, 20000};
  return Group::create(std::move(t), shape);
}

TEST(Nccl, CarriesMessagesInPieces) {
  run_ranks(3, [](Rank& r) {
    FakeComm c = comm_of(r, 3);
    c.starting = 5;  // a communicator that does not block
    {
      auto made = group_of(&c, 20000);
      ASSERT_TRUE(made.is_ok()) << made.status().text();
      Group& g = *made.value();
      EXPECT_EQ(g.transport().name(), "NCCL 2.28.3");
      EXPECT_EQ(g.transport().device_bytes(), 4u << 20);
      uint32_t own = 100 + r.rank(), all[3] = {};
      ASSERT_TRUE(g.exchange(&own, all, sizeof own).is_ok());
      EXPECT_EQ(all[0] + all[1] + all[2], 303u);
      std::vector<uint32_t> rows((9u << 20) / 4 + 1);
      if (!g.is_first()) {
        ASSERT_TRUE(g.receive_on(rows.data(), rows.size() * 4).is_ok());
      }
      size_t n_right = 0;
      for (size_t i = 0; i < rows.size(); ++i) {
        n_right += rows[i] == static_cast<uint32_t>(i) * r.rank() ? 1 : 0;
        rows[i] += static_cast<uint32_t>(i);
      }
      EXPECT_EQ(n_right, rows.size());
      if (!g.is_last()) {
        ASSERT_TRUE(g.send_on(rows.data(), rows.size() * 4).is_ok());
      }
    }
    EXPECT_EQ(c.n_held, 0);
    EXPECT_EQ(c.n_aborted, 0);
  });
}

TEST(Nccl, IsRefusedWhereTheCommunicatorIsAnother) {
  Rank r(0, 2, {-1, -1}, stderr);
  FakeComm c = comm_of(r, 2);
  const auto refused = [&](const NcclOptions& o, Code code, const char* words) {
    const auto t = make_nccl_transport(o);
    ASSERT_FALSE(t.is_ok());
    EXPECT_EQ(t.status().code(), code);
    EXPECT_NE(t.status().text().find(words), std::string::npos) << t.status().text();
    EXPECT_EQ(c.n_held, 0);
    EXPECT_EQ(c.n_aborted, 0);
  };
  NcclOptions o = options_of(&c);
  o.n_ranks = 3;
  refused(o, Code::kInvalidArgument, "has 2 ranks, of which this process is 0, but the group says");
  o = options_of(&c);
  o.rank = 1;
  refused(o, Code::kInvalidArgument, "the group says rank 1 of 2");
  o = options_of(&c);
  o.library = "/nowhere/libnccl.so.2";
  refused(o, Code::kUnsupported, "NCCL cannot be opened");
  o = options_of(&c);
  o.driver = "/nowhere/libcuda.so.1";
  refused(o, Code::kUnsupported, "NVIDIA's driver cannot be opened");
  o = options_of(&c);
  o.driver = "libc.so.6";
  refused(o, Code::kUnsupported, "libc.so.6 lacks functions of NVIDIA's driver");
  o.library = "libc.so.6";
  refused(o, Code::kUnsupported, "libc.so.6 lacks functions of NCCL");
}

/// What one rank does not answer, the others give up, once, and touch no more.
TEST(Nccl, IsGivenUpWhenItsTimeIsOver) {
  const auto ranks = run_ranks(2, [](Rank& r) {
    FakeComm c = comm_of(r, 2);
    {
      auto made = group_of(&c, 400);
      ASSERT_TRUE(made.is_ok()) << made.status().text();
      Group& g = *made.value();
      uint32_t row = 1;
      if (r.rank() == 1) raise(SIGSTOP);
      uint32_t all[2];
      const Status late = g.exchange(&row, all, sizeof row);
      EXPECT_EQ(late.code(), Code::kDeviceLost);
      EXPECT_NE(late.text().find("ncclRecv did not end in the time given"), std::string::npos)
          << late.text();
      EXPECT_EQ(c.n_aborted, 1);
      EXPECT_EQ(g.send_on(&row, sizeof row).code(), Code::kDeviceLost);
    }
    EXPECT_EQ(c.n_aborted, 1);
    EXPECT_EQ(c.n_held, 0);
  });
  EXPECT_EQ(ranks[0].exit_code, 0);
}

TEST(Nccl, HearsOfRanksThatAreGone) {
  const auto ranks = run_ranks(3, [](Rank& r) {
    FakeComm c = comm_of(r, 3);
    auto made = group_of(&c, 20000);
    ASSERT_TRUE(made.is_ok()) << made.status().text();
    if (r.rank() == 2) raise(SIGKILL);
    uint32_t row = 1, all[3];
    const Status gone = made.value()->exchange(&row, all, sizeof row);
    EXPECT_EQ(gone.code(), Code::kDeviceLost);
    EXPECT_NE(gone.text().find("a pretended error"), std::string::npos) << gone.text();
    EXPECT_EQ(c.n_aborted, 1);
  });
  EXPECT_EQ(ranks[2].signal, SIGKILL);
}

}  // namespace
}  // namespace sharpi::testing
