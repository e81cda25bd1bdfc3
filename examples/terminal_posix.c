/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "terminal.h"

/* Ctrl-C while nothing runs comes to the reader of lines through a pipe. A signal alone could come
 * between the prompt and the wait for a key, and would then end neither. */
static int interrupt_pipe[2];
static int (*stop_what_runs)(void);

static void on_interrupt(int number) {
  (void)number;
  if (stop_what_runs()) return;
  const int before = errno;
  if (write(interrupt_pipe[1], "", 1) < 0) { /* full: the reader has been told */
  }
  errno = before;
}

int catch_interrupts(int (*stop)(void)) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_interrupt;
  stop_what_runs = stop;
  if (pipe(interrupt_pipe) != 0 || fcntl(interrupt_pipe[0], F_SETFL, O_NONBLOCK) != 0 ||
      fcntl(interrupt_pipe[1], F_SETFL, O_NONBLOCK) != 0 || sigaction(SIGINT, &action, NULL) != 0) {
    fprintf(stderr, "no pipe for Ctrl-C: %s\n", strerror(errno));
    return -1;
  }
  return 0;
}

int next_byte(void) {
  static unsigned char bytes[4096];
  static ssize_t n, at;
  while (at >= n) {
    struct pollfd waits[2] = {{.fd = interrupt_pipe[0], .events = POLLIN},
                              {.fd = STDIN_FILENO, .events = POLLIN}};
    if (poll(waits, 2, -1) < 0 && errno != EINTR) return EOF;
    int interrupted = 0;
    while (read(interrupt_pipe[0], bytes, sizeof bytes) > 0) interrupted = 1;
    if (interrupted) return kInterrupted;
    if (waits[1].revents == 0) continue;
    at = 0;
    n = read(STDIN_FILENO, bytes, sizeof bytes);
    if (n == 0 || (n < 0 && errno != EINTR)) return EOF;
  }
  return bytes[at++];
}
