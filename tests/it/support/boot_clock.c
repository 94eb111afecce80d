/* Adds the seconds in a file to the clock that also goes on while a machine sleeps. Preloaded into all processes of an agent. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    int failed = syscall(SYS_clock_gettime, clock, time);
    const char *path = getenv("SECONDS_AHEAD_FILE");
    if (!failed && clock == CLOCK_BOOTTIME && path) {
        FILE *file = fopen(path, "r");
        long seconds = 0;
        if (file) {
            if (fscanf(file, "%ld", &seconds) == 1) time->tv_sec += seconds;
            fclose(file);
        }
    }
    return failed;
}
