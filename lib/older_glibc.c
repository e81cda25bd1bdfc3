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
#include <link.h>
#include <locale.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#define OF_2_3_4 "GLIBC_2.3.4"
#define OF_2_12 "GLIBC_2.12"
#define STAT_VERSION 1
#elif defined(__aarch64__)
#define OLDEST "GLIBC_2.17"
#define OF_2_3_4 OLDEST
#define OF_2_12 OLDEST
#define STAT_VERSION 0
#else
#error "which version of its symbols does the first glibc for this processor have?"
#endif

/* A function NAME that jumps to NAME in that version, whatever its parameters are; in a section of
 * its own, so that what nobody calls is left out. */
#if defined(__x86_64__)
#define JUMP(name) "  jmp *old_" #name "@GOTPCREL(%rip)\n"
#else
#define JUMP(name)                        \
  "  adrp x16, :got:old_" #name           \
  "\n"                                    \
  "  ldr x16, [x16, :got_lo12:old_" #name \
  "]\n"                                   \
  "  br x16\n"
#endif
#define OLD_OF(version, name)                                                               \
  __asm__(".symver old_" #name ", " #name "@" version                                       \
          "\n"                                                                              \
          ".section .text.old_" #name                                                       \
          ", \"ax\", %progbits\n"                                                           \
          ".globl " #name                                                                   \
          "\n"                                                                              \
          ".hidden " #name                                                                  \
          "\n"                                                                              \
          ".type " #name ", %function\n" #name ":\n" JUMP(name) ".size " #name ", .-" #name \
                                                                "\n"                        \
                                                                ".text\n")
#define OLD(name) OLD_OF(OLDEST, name)

/* Of what was libdl. */
OLD(dladdr);
OLD(dlclose);
OLD(dlerror);
OLD(dlopen);
OLD(dlsym);
OLD(dlvsym);
OLD_OF(OF_2_3_4, dlmopen);
/* Of what was libpthread. */
OLD(__pthread_key_create);
OLD(pthread_condattr_setpshared);
OLD(pthread_create);
OLD(pthread_detach);
OLD(pthread_getspecific);
OLD(pthread_join);
OLD(pthread_key_create);
OLD(pthread_key_delete);
OLD(pthread_kill);
OLD(pthread_mutex_trylock);
OLD(pthread_mutexattr_destroy);
OLD(pthread_mutexattr_init);
OLD(pthread_mutexattr_setpshared);
OLD(pthread_mutexattr_settype);
OLD(pthread_once);
OLD(pthread_rwlock_destroy);
OLD(pthread_rwlock_init);
OLD(pthread_rwlock_rdlock);
OLD(pthread_rwlock_timedrdlock);
OLD(pthread_rwlock_timedwrlock);
OLD(pthread_rwlock_tryrdlock);
OLD(pthread_rwlock_trywrlock);
OLD(pthread_rwlock_unlock);
OLD(pthread_rwlock_wrlock);
OLD(pthread_rwlockattr_destroy);
OLD(pthread_rwlockattr_init);
OLD(pthread_rwlockattr_setpshared);
OLD(pthread_setspecific);
OLD(pthread_sigmask);
OLD(pthread_spin_destroy);
OLD(pthread_spin_init);
OLD(pthread_spin_lock);
OLD(pthread_spin_trylock);
OLD(pthread_spin_unlock);
OLD(sem_destroy);
OLD(sem_init);
OLD(sem_post);
OLD(sem_timedwait);
OLD(sem_trywait);
OLD(sem_wait);
OLD_OF(OF_2_12, pthread_setname_np);
/* Of what was librt. */
OLD(shm_open);
OLD(shm_unlink);
/* Of libm, where 2.29 changed how errors are told. */
OLD(exp);
OLD(log);
OLD(pow);

extern int old___fxstat(int, int, struct stat*);
__asm__(".symver old___fxstat, __fxstat@" OLDEST);

extern int old___xstat(int, const char*, struct stat*);
__asm__(".symver old___xstat, __xstat@" OLDEST);

/* glibc before 2.33 has fstat and stat in an archive of its own, over these functions. */
int stat(const char* path, struct stat* out) {
  return old___xstat(STAT_VERSION, path, out);
}
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
