// SPDX-License-Identifier: MIT
// Reservations and buffers where the system refuses advice about memory.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <vector>

#include "base/memory.h"
#include "base/reservation.h"

namespace sharpi {
namespace {

constexpr uint64_t kMebibyte = uint64_t{1} << 20;

bool is_resident(const std::byte* p, uint64_t bytes) {
  std::vector<unsigned char> map(bytes / static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
  return mincore(const_cast<std::byte*>(p), bytes, map.data()) == 0 &&
         std::all_of(map.begin(), map.end(), [](unsigned char c) { return (c & 1) != 0; });
}

/// From now on madvise() with these kinds of advice fails with `error`, as in a sandbox that does
/// not know them. False where the system does not let a process restrict itself.
bool refuse_advice(int error) {
  constexpr auto kNumber = static_cast<uint32_t>(offsetof(seccomp_data, nr));
  constexpr auto kAdvice = static_cast<uint32_t>(offsetof(seccomp_data, args) + 2 * sizeof(__u64));
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumber),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kAdvice),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 23, 1, 0),  // MADV_POPULATE_WRITE
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_HUGEPAGE, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{static_cast<unsigned short>(std::size(code)), code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/// In a child, because no process gets rid of its filter.
TEST(ReservationInASandbox, AdviceThatIsRefusedIsNoWantOfMemory) {
  for (const int error : {EPERM, ENOSYS, EACCES, EINVAL}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      if (!refuse_advice(error)) _exit(2);
      MemoryMeter meter;
      auto range = Reservation::reserve(meter, 8 * kMebibyte, "rows");
      if (!range.is_ok() || !range.value().commit(3 * kMebibyte).is_ok()) _exit(3);
      std::memset(range.value().data(), 0xAB, 3 * kMebibyte);
      if (!is_resident(range.value().data(), 3 * kMebibyte)) _exit(4);
      _exit(HostBuffer::allocate(meter, 8 * kMebibyte, "rows").is_ok() ? 0 : 5);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
      GTEST_SKIP() << "the system does not let a process restrict its system calls";
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << strerrordesc_np(error) << ": " << status;
  }
}

}  // namespace
}  // namespace sharpi
