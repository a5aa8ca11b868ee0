/* Memory that is given back is overwritten first. Preloaded (LD_PRELOAD) into a process that must leave nothing behind.

   Everything in the process allocates through the functions below: Python (with PYTHONMALLOC=malloc), numpy, torch and
   its kernels (C++'s delete ends in free), image decoders. What is given back to the kernel by munmap is out of the
   process, and the kernel clears pages before it hands them out again.

   The real functions are those of whatever allocator comes next. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stddef.h>
#include <string.h>

static void (*next_free)(void *);
static void *(*next_malloc)(size_t);

/* What the program asks for to know that the library is at work. */
int crodobo_zero_on_free(void) { return 1; }

__attribute__((constructor)) static void find_next(void) {
    next_malloc = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    next_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
}

/* A plain memset before free may be left out by the compiler, which knows that nobody reads the memory after. */
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

/* Never in place where the block would move or shrink: the allocator would keep what it copies from, or cuts off. */
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
