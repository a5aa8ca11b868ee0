/* Overwrites memory before it is freed. Preloaded (LD_PRELOAD) into a process that must leave nothing behind.

   Everything in the process allocates through the functions below: Python (with PYTHONMALLOC=malloc), numpy, torch and
   its kernels (C++'s delete calls free), image decoders. Memory that munmap returns to the kernel has left the process,
   and the kernel clears pages before it hands them out again.

   The real functions are those of the next allocator. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stddef.h>
#include <string.h>

static void (*next_free)(void *);
static void *(*next_malloc)(size_t);

/* The program looks for this symbol to check that the library is loaded. */
int crodobo_zero_on_free(void) { return 1; }

__attribute__((constructor)) static void find_next(void) {
    next_malloc = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    next_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
}

/* The compiler may drop a plain memset before free, because nothing reads the memory afterwards. */
static void wipe(void *start, size_t size) {
    memset(start, 0, size);
    __asm__ __volatile__("" : : "r"(start) : "memory");
}

void free(void *block) {
    if (!block) return;
    wipe(block, malloc_usable_size(block));
    if (!next_free) find_next();
    next_free(block);
}

void cfree(void *block) { free(block); }

/* Never leave moving or shrinking a block to the allocator: it would not wipe the old copy, or the part cut off. */
void *realloc(void *block, size_t size) {
    if (!next_malloc) find_next();
    if (!block) return next_malloc(size);
    if (!size) {
        free(block);
        return NULL;
    }
    size_t old = malloc_usable_size(block);
    if (size <= old && size >= old / 2) {
        wipe((char *)block + size, old - size);
        return block;
    }
    void *moved = next_malloc(size);
    if (!moved) return NULL;
    memcpy(moved, block, size < old ? size : old);
    free(block);
    return moved;
}

void *reallocarray(void *block, size_t count, size_t size) {
    size_t total;
    if (__builtin_mul_overflow(count, size, &total)) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc(block, total);
}
