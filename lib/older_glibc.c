/* SPDX-License-Identifier: MIT
 *
 * For the library that packages bring (the target sharpi_bundled): it is linked on a machine with a
 * current GNU C library, and has to be loaded by older ones.
 *
 * A symbol of the C library carries the version in which it last changed, and the linker takes the
 * newest: pthread_create of glibc 2.34, because it moved there from libpthread into libc, though it
 * is the function of always. The functions here stand in front of those. They bear the same names,
 * so all objects and archives that are linked with them call them, and pass each call on to the
 * version that every glibc for this processor has. What is younger than that has its own code here.
 *
 * The oldest version that is then left is what the wheel's tag says; tools/dist/glibc_floor.sh
 * refuses a library that asks for a newer one. The version script keeps all of these names inside.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#define OF_2_12 "GLIBC_2.12"
#define STAT_VERSION 1
#elif defined(__aarch64__)
#define OLDEST "GLIBC_2.17"
#define OF_2_12 OLDEST
#define STAT_VERSION 0
#else
#error "which version of its symbols does the first glibc for this processor have?"
#endif

/* Declares old_NAME, which is NAME in that version, or in its oldest. */
#define OLD_OF(version, result, name, parameters) \
  extern result old_##name parameters;            \
  __asm__(".symver old_" #name ", " #name "@" version)
#define OLD(result, name, parameters) OLD_OF(OLDEST, result, name, parameters)

OLD(void*, dlopen, (const char*, int));
OLD(void*, dlsym, (void*, const char*));
OLD(int, dlclose, (void*));
OLD(int, pthread_create, (pthread_t*, const pthread_attr_t*, void* (*)(void*), void*));
OLD(int, pthread_join, (pthread_t, void**));
OLD(int, pthread_mutex_trylock, (pthread_mutex_t*));
OLD(int, pthread_once, (pthread_once_t*, void (*)(void)));
OLD_OF(OF_2_12, int, pthread_setname_np, (pthread_t, const char*));
OLD(int, pthread_sigmask, (int, const sigset_t*, sigset_t*));
OLD(int, __pthread_key_create, (pthread_key_t*, void (*)(void*)));
OLD(int, __fxstat, (int, int, struct stat*));
OLD(double, exp, (double));
OLD(double, log, (double));
OLD(double, pow, (double, double));

void* dlopen(const char* file, int mode) {
  return old_dlopen(file, mode);
}
void* dlsym(void* restrict handle, const char* restrict name) {
  return old_dlsym(handle, name);
}
int dlclose(void* handle) {
  return old_dlclose(handle);
}
int pthread_create(pthread_t* restrict thread, const pthread_attr_t* restrict attributes,
                   void* (*start)(void*), void* restrict argument) {
  return old_pthread_create(thread, attributes, start, argument);
}
int pthread_join(pthread_t thread, void** result) {
  return old_pthread_join(thread, result);
}
int pthread_mutex_trylock(pthread_mutex_t* mutex) {
  return old_pthread_mutex_trylock(mutex);
}
int pthread_once(pthread_once_t* control, void (*function)(void)) {
  return old_pthread_once(control, function);
}
int pthread_setname_np(pthread_t thread, const char* name) {
  return old_pthread_setname_np(thread, name);
}
int pthread_sigmask(int how, const sigset_t* restrict set, sigset_t* restrict old) {
  return old_pthread_sigmask(how, set, old);
}
int __pthread_key_create(pthread_key_t* key, void (*destructor)(void*));
int __pthread_key_create(pthread_key_t* key, void (*destructor)(void*)) {
  return old___pthread_key_create(key, destructor);
}
double exp(double x) {
  return old_exp(x);
}
double log(double x) {
  return old_log(x);
}
double pow(double x, double y) {
  return old_pow(x, y);
}

/* glibc before 2.33 has fstat in an archive of its own, over this function. */
int fstat(int file, struct stat* out) {
  return old___fxstat(STAT_VERSION, file, out);
}
int fstat64(int file, struct stat64* out) {
  _Static_assert(sizeof(struct stat) == sizeof(struct stat64), "a 64-bit system has one stat");
  return old___fxstat(STAT_VERSION, file, (struct stat*)out);
}

/* 2.32: the sentence of an error in English, whatever the locale. */
const char* strerrordesc_np(int error) {
  return strerror_l(error, newlocale(LC_ALL_MASK, "C", (locale_t)0));
}

/* 2.32: whether the process has one thread, so that counters need no atomic operation. Here they
 * always have one. */
char __libc_single_threaded = 0;

/* 2.35: which object an address belongs to, for exceptions on their way up. */
struct search {
  uintptr_t address;
  const void* frames; /* of the object that holds it */
};

static int holds_address(struct dl_phdr_info* info, size_t size, void* user_data) {
  struct search* s = user_data;
  const void* frames = NULL;
  int holds = 0;
  (void)size;
  for (unsigned i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* header = &info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + header->p_vaddr;
    if (header->p_type == PT_GNU_EH_FRAME) frames = (const void*)begin;
    if (header->p_type == PT_LOAD && s->address >= begin && s->address - begin < header->p_memsz) {
      holds = 1;
    }
  }
  s->frames = holds ? frames : NULL;
  return holds;
}

int _dl_find_object(void* address, struct dl_find_object* found) {
  struct search s = {(uintptr_t)address, NULL};
  if (dl_iterate_phdr(holds_address, &s) == 0 || s.frames == NULL) return -1;
  memset(found, 0, sizeof *found);
  found->dlfo_eh_frame = (void*)s.frames;
  return 0;
}
