/* scripts/setup puts this in front of every C file of llama.cpp that it compiles without OpenMP on x86 Linux.
 *
 * Where ggml's threads wait for each other they spin on _mm_pause without end. Beside a busy process of another session (a
 * build in another terminal) the thread waited for is often not running, because the waiting one holds its core: each of
 * some 600 waits in a forward then takes a whole time slice, and a token seconds instead of 27 ms (two cores, one of them
 * busy; GCC's OpenMP does no better). Giving the core away every 1024 pauses, about ten microseconds, makes that 60 ms and
 * costs nothing alone (1.5B Q4_K_M, AMD EPYC, 2026-11-30). */
#if defined(__x86_64__) && defined(__linux__) && !defined(__ASSEMBLER__) && !defined(__cplusplus)
#include <immintrin.h>
#include <sched.h>

static inline void specllm_pause(void) {
    static __thread unsigned n_pauses;
    _mm_pause();
    if ((++n_pauses & 1023) == 0) {
        sched_yield();
    }
}
#define _mm_pause specllm_pause
#endif
