// What the judge does between batches and around the clock that Python cannot do, or not fast enough.
//
// flush: takes memory out of every cache.
// overwrite: fills memory past the caches; what of it they held is gone from them.
// exchange: continues a stopped runner, waits for its record, stops it and proves that it is stopped, with the clock read
// before the first and after the last. The same steps as harness/judge/isolation/process_freezer.py, for the usual sandbox of a few processes;
// whatever is unusual is left to that file. In Python, cold caches make these steps cost 0.35 ms.
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

__attribute__((target("clflushopt"))) static void flush_fast(char* from, char* to) {
    for (char* line = from; line < to; line += 64) _mm_clflushopt(line);
    _mm_sfence();
}

extern "C" int flush(void* start, uint64_t bytes) {
    static int has = -1;
    if (has < 0) {
        unsigned a, b, c, d;
        has = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & (1u << 23));
    }
    char* from = (char*)((uintptr_t)start & ~uintptr_t(63));
    char* to = (char*)start + bytes;
    if (has) {
        flush_fast(from, to);
    } else {
        for (char* line = from; line < to; line += 64) _mm_clflush(line);
        _mm_mfence();
    }
    return 0;
}

extern "C" void overwrite(void* start, uint64_t bytes, uint8_t byte) {
    const __m128i value = _mm_set1_epi8(char(byte));
    __m128i* at = (__m128i*)start;
    for (__m128i* end = at + bytes / sizeof *at; at < end; ++at) _mm_stream_si128(at, value);
    _mm_sfence();
}
#elif defined(__aarch64__)
extern "C" int flush(void* start, uint64_t bytes) {
    uint64_t type;
    asm volatile("mrs %0, ctr_el0" : "=r"(type));
    const uint64_t line = 4ull << ((type >> 16) & 15);
    for (uintptr_t at = (uintptr_t)start & ~(line - 1); at < (uintptr_t)start + bytes; at += line)
        asm volatile("dc civac, %0" ::"r"(at) : "memory");
    asm volatile("dsb sy" ::: "memory");
    return 0;
}
#else
extern "C" int flush(void*, uint64_t) { return 1; }
#endif

#if !defined(__x86_64__)
extern "C" void overwrite(void* start, uint64_t bytes, uint8_t byte) {
    memset(start, byte, bytes);
    flush(start, bytes);
}
#endif

namespace {

constexpr int MOST = 8;
constexpr uint64_t UNKNOWN = ~0ull;
constexpr long REFUSED = -2;

struct Process {
    int pidfd, directory, stat, schedstat;
};

int64_t now() {
    timespec at;
    clock_gettime(CLOCK_MONOTONIC_RAW, &at);
    return at.tv_sec * 1000000000ll + at.tv_nsec;
}

void send_all(const Process* processes, int count, int signal) {
    for (int i = 0; i < count; ++i) syscall(SYS_pidfd_send_signal, processes[i].pidfd, signal, nullptr, 0);
}

// How many processes the sandbox's own /proc lists.
int listed(int proc) {
    char buffer[8192];
    int found = 0;
    lseek(proc, 0, SEEK_SET);
    for (long got; (got = syscall(SYS_getdents64, proc, buffer, sizeof buffer)) > 0;)
        for (long at = 0; at < got;) {
            // struct linux_dirent64: inode, offset, length of the record, type, name
            uint16_t length;
            memcpy(&length, buffer + at + 16, 2);
            const char first = buffer[at + 19];
            found += first >= '0' && first <= '9';
            at += length;
        }
    return found;
}

enum Answer { YES, NOT_YET, UNUSUAL };

// The scheduler's counters of a stopped sandbox. `hash` covers all of them; the sums are over its threads.
struct Counters {
    uint64_t hash = 14695981039346656037ull;
    uint64_t cpu_ns = 0, slices = 0;
};

// FNV-1a.
void add_to_hash(Counters& seen, const char* data, long count) {
    for (long i = 0; i < count; ++i) seen.hash = (seen.hash ^ uint8_t(data[i])) * 1099511628211ull;
}

// Adds a line of /proc/.../schedstat: time on the processor (ns), time waiting for it (ns), time slices.
void add_schedstat(Counters& seen, char* line, long count) {
    add_to_hash(seen, line, count);
    if (count <= 0) return;
    line[count] = 0;
    char* at = line;
    seen.cpu_ns += strtoull(at, &at, 10);
    strtoull(at, &at, 10);
    seen.slices += strtoull(at, &at, 10);
}

// The state in a line of /proc/.../stat, and how many threads the process has; 0 when the line is no such line.
char state_of(char* line, long count, bool& alone) {
    if (count <= 0) return 0;
    line[count] = 0;
    const char* at = strrchr(line, ')');  // the name before it may hold anything
    if (!at || at[1] != ' ') return 0;
    at += 2;  // the state is the third field, the number of threads the twentieth
    const char state = *at;
    for (int field = 3; field < 20; ++field)
        if (!(at = strchr(at + 1, ' '))) return 0;
    alone = at[1] == '1' && at[2] == ' ';
    return state;
}

long read_at(int directory, const char* name, const char* file, char* buffer, long room) {
    char path[32];
    if (strlen(name) + strlen(file) + 2 > sizeof path) return -1;
    strcat(strcat(strcpy(path, name), "/"), file);
    const int opened = openat(directory, path, O_RDONLY | O_CLOEXEC);
    if (opened < 0) return -1;
    const long got = read(opened, buffer, room);
    close(opened);
    return got;
}

// Are all threads of a process stopped, or dead?
Answer threads_stopped(const Process& process, Counters& seen) {
    const int task = openat(process.directory, "task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (task < 0) return UNUSUAL;
    char entries[8192], line[1024];
    Answer answer = YES;
    for (long got; answer == YES && (got = syscall(SYS_getdents64, task, entries, sizeof entries)) > 0;)
        for (long at = 0; answer == YES && at < got;) {
            uint16_t length;
            memcpy(&length, entries + at + 16, 2);
            const char* name = entries + at + 19;
            at += length;
            if (*name < '0' || *name > '9') continue;
            bool alone;
            const char state = state_of(line, read_at(task, name, "stat", line, sizeof line - 1), alone);
            if (state != 'T' && state != 'Z' && state != 'X') answer = NOT_YET;
            const long count = read_at(task, name, "schedstat", line, sizeof line - 1);
            if (count <= 0) answer = NOT_YET;
            add_to_hash(seen, name, strlen(name) + 1);
            add_schedstat(seen, line, count);
        }
    close(task);
    return answer;
}

// Is a process stopped? Adds its counters to `seen`.
Answer stopped(const Process& process, Counters& seen) {
    char line[1024];
    bool alone;
    const char state = state_of(line, pread(process.stat, line, sizeof line - 1, 0), alone);
    if (!state) return UNUSUAL;
    if (!alone) return threads_stopped(process, seen);
    if (state != 'T') return NOT_YET;
    const long count = pread(process.schedstat, line, sizeof line - 1, 0);
    add_schedstat(seen, line, count);
    return count > 0 ? YES : UNUSUAL;
}

// One look. Without a /proc of its own (-1) a sandbox's new processes are not seen.
Answer look_at_all(const Process* processes, int count, int proc, Counters& look) {
    if (proc >= 0 && listed(proc) != count) return UNUSUAL;
    for (int i = 0; i < count; ++i) {
        const Answer answer = stopped(processes[i], look);
        if (answer != YES) return answer;
    }
    return YES;
}

// Two looks that agree: see harness/judge/isolation/process_freezer.py.
Answer all_stopped(const Process* processes, int count, int proc, Counters& proof) {
    Counters looks[2];
    for (auto& look : looks) {
        const Answer answer = look_at_all(processes, count, proc, look);
        if (answer != YES) return answer;
    }
    proof = looks[1];
    return looks[0].hash == looks[1].hash ? YES : NOT_YET;
}

}  // namespace

// Answers the bytes of the record received, 0 when the line is closed, -1 when none came in time (the runner is then left
// running), and in `proved` whether the stop is proved; if not the caller must prove it, and stamp the end itself.
// `cpu_ns` and `slices` are the counters of the proof: while the sandbox is stopped they do not change. `slices` is also an
// argument: the count at the last proof. Unless it is UNKNOWN, a sandbox of few processes whose count differs now is not
// continued, and the answer is REFUSED.
// `freezer` is the open cgroup.freeze of the sandbox's group, or -1.
extern "C" long exchange(int line, const Process* processes, int count, int proc, int freezer, int spin,
                         int64_t within_ns, char* record, uint64_t record_bytes, int64_t* begin, int64_t* end, int* proved,
                         uint64_t* cpu_ns, uint64_t* slices) {
    *proved = 0;
    if (freezer >= 0 && pwrite(freezer, "0", 1, 0) != 1) return REFUSED;
    Counters before;
    if (*slices != UNKNOWN && count <= MOST &&
        (look_at_all(processes, count, proc, before) != YES || before.slices != *slices))
        return REFUSED;
    *begin = now();
    // Last to first: the runner comes after its sandbox's first process, and is the one that is waited for.
    for (int i = count - 1; i >= 0; --i) send_all(processes + i, 1, SIGCONT);
    long got;
    for (;;) {
        got = recv(line, record, record_bytes, MSG_DONTWAIT);
        if (got >= 0) break;
        if (errno != EAGAIN && errno != EINTR) return 0;
        const int64_t left = within_ns - (now() - *begin);
        if (left <= 0) return -1;
        if (!spin) {
            pollfd wait = {line, POLLIN, 0};
            poll(&wait, 1, int(left / 1000000 + 1));
        }
    }
    if (got == 0 || count > MOST) return got;
    for (int i = count - 1; i >= 0; --i) send_all(processes + i, 1, SIGSTOP);
    Answer answer = NOT_YET;
    Counters proof;
    for (const int64_t until = now() + 3000000; answer == NOT_YET && now() < until;)
        answer = all_stopped(processes, count, proc, proof);
    *end = now();
    *proved = answer == YES;
    *cpu_ns = proof.cpu_ns;
    *slices = proof.slices;
    return got;
}
