// SPDX-License-Identifier: MIT
#include "os/threads.h"

#include <process.h>

#include <cerrno>
#include <memory>

#include "os/windows/system.h"

namespace sharpi::os {
namespace {

struct Start {
  Thread::Entry entry;
  void* argument;
};

unsigned __stdcall run(void* p) {
  const std::unique_ptr<Start> start(static_cast<Start*>(p));
  const Start s = *start;
  s.entry(s.argument);
  return 0;
}

HANDLE handle_of(uint64_t thread) {
  return reinterpret_cast<HANDLE>(static_cast<uintptr_t>(thread));
}

}  // namespace

int Thread::start(Entry entry, void* argument, const char* name) {
  auto start = std::make_unique<Start>(Start{entry, argument});
  const uintptr_t thread = _beginthreadex(nullptr, 0, run, start.get(), 0, nullptr);
  if (thread == 0) return errno;
  start.release();
  handle_ = thread;
  using Describe = HRESULT(WINAPI*)(HANDLE, PCWSTR);
  const auto describe = system_function<Describe>(L"kernel32.dll", "SetThreadDescription");
  if (describe != nullptr) describe(handle_of(handle_), wide(name).c_str());
  return 0;
}

void Thread::join() const {
  WaitForSingleObject(handle_of(handle_), INFINITE);
  CloseHandle(handle_of(handle_));
}

void wait_while(std::atomic<uint32_t>& word, uint32_t expected) {
  WaitOnAddress(&word, &expected, sizeof expected, INFINITE);
}

void wake(std::atomic<uint32_t>& word, uint32_t n) {
  if (n == 1) {
    WakeByAddressSingle(&word);
  } else if (n != 0) {
    WakeByAddressAll(&word);
  }
}

// A thread that ends another one here leaves whatever it held as it was: nothing prevents that.
NoCancellation::NoCancellation() noexcept = default;
NoCancellation::~NoCancellation() = default;

int64_t process_id() {
  return GetCurrentProcessId();
}

}  // namespace sharpi::os
