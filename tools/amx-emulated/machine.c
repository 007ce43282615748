// The firmware of an emulated machine that runs one static Linux program, without Linux: it stands
// in the place of a BIOS, switches the processor to 64 bits with AVX-512 and AMX on, reads the
// program from the first disk and answers its system calls. What it writes goes to port 0xE9.
//
// There is one processor, and no clock interrupts it. A new thread or process runs at once and to
// its end, and then its parent goes on; the parent's memory is copied before it forks, and put
// back. That is enough for programs whose threads do not wait for those that started them.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;

enum { MIB = 1 << 20, MOST_NESTED = 8 };
// The first thread's stack ends where the program is loaded, after which comes what mmap() gives.
enum { STACK = 15 * MIB, LOADED = 16 * MIB };
// The program as the disk has it; later the memory of a parent.
enum { COPY = 512 * MIB };

__asm__(".section .start, \"ax\"\n.code16\n"
        // Page tables: addresses are what they are, in the first four times 1 GiB.
        "start16: cli; cld; xor %ax, %ax; mov %ax, %ds; mov %ax, %ss; movl $0x2003, 0x1000\n"
        "movl $0x83, 0x2000; movl $0x40000083, 0x2008\n"
        "movl $0x80000083, 0x2010; movl $0xC0000083, 0x2018\n"
        "mov $0x1000, %eax; mov %eax, %cr3\n"
        "mov $0x40620, %eax; mov %eax, %cr4\n" // PAE, SSE and its exceptions, XSAVE
        "mov $0xC0000080, %ecx; mov $0x101, %eax; xor %edx, %edx; wrmsr\n" // 64 bits, `syscall`
        "lgdtl %cs:table_place - 0xF0000; mov $0x80000023, %eax; mov %eax, %cr0\n"
        "ljmpl $8, $start64\n"
        ".balign 8\ntable: .quad 0, 0x00AF9B000000FFFF, 0x00CF93000000FFFF\n"
        "table_place: .word 23; .long table\n"
        ".code64\nstart64: mov $16, %ax; mov %ax, %ds; mov %ax, %es; mov %ax, %ss\n"
        // x87, SSE, AVX, AVX-512, and the configuration and the data of tiles.
        "xor %ecx, %ecx; mov $0x600E7, %eax; xor %edx, %edx; xsetbv; fninit\n"
        "mov $own_stack + 0x4000, %rsp; call begin\n"
        // Where `syscall` goes: everything is saved, and what answer() returns is restored.
        "system_call: mov %rsp, program_stack; mov $own_stack + 0x4000, %rsp; push program_stack\n"
        "push %rcx; push %rax; push %rbp; push %rbx; push %rdx; push %rsi; push %rdi; push %r8\n"
        "push %r9; push %r10; push %r12; push %r13; push %r14; push %r15\n"
        "mov %rsp, %rdi; call answer\n"
        "go_on: mov %rax, %rsp; pop %r15; pop %r14; pop %r13; pop %r12; pop %r10; pop %r9\n"
        "pop %r8; pop %rdi; pop %rsi; pop %rdx; pop %rbx; pop %rbp; pop %rax; pop %rcx\n"
        "pop %rsp; jmp *%rcx\n"
        // Where exceptions go, sixteen bytes each.
        ".balign 16\nexceptions: n = 0\n.rept 32\n.balign 16\npush $n; jmp 1f\nn = n + 1\n.endr\n"
        "1: mov %rsp, %rdi; mov $own_stack + 0x4000, %rsp; call fault; jmp go_on\n"
        ".section .reset, \"ax\"\n.code16\nljmp $0xF000, $start16 - 0xF0000\n.code64\n.text\n");

// The registers of a program that made a system call.
struct Frame {
    u64 r15, r14, r13, r12, r10, r9, r8, rdi, rsi, rdx, rbx, rbp, rax, rip, rsp;
};

// What goes on when a thread or process that it started has ended.
struct Parent {
    struct Frame frame;
    u64 thread_pointer;
    u32 *ended; // Where its thread number lies, if it is a thread itself: 0 says that it ended.
    u64 copied; // Bytes of memory, if it forked.
};

extern u8 exceptions[], system_call[];
u8 own_stack[0x4000] __attribute__((aligned(16)));
u64 program_stack, thread_pointer, mapped_end, handlers[64];
u32 last_number, child_status, *ended;
struct Parent parents[MOST_NESTED];
int nested;

static void out(u16 port, u8 value) { __asm__ volatile("outb %0, %1" ::"a"(value), "Nd"(port)); }
static u8 in(u16 port) {
    u8 value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}
static void write_msr(u32 msr, u64 value) {
    __asm__ volatile("wrmsr" ::"c"(msr), "a"((u32)value), "d"((u32)(value >> 32)));
}
static void copy(u64 to, u64 from, u64 bytes) {
    u64 words = bytes / 8, rest = bytes % 8;
    __asm__ volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(words)::"memory");
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(rest)::"memory");
}
static void set_thread_pointer(u64 to) { write_msr(0xC0000100, thread_pointer = to); }

static void say(const char *name, u64 value) {
    while (*name) out(0xE9, *name++);
    for (int at = 60; at >= 0; at -= 4) out(0xE9, "0123456789abcdef"[value >> at & 15]);
    out(0xE9, '\n');
}
static void stop(const char *why, u64 value) {
    say(why, value);
    for (const char *at = "Shutdown"; *at; at++) out(0x8900, *at);
    for (;;) __asm__ volatile("cli; hlt");
}

static struct Frame *parent(void) {
    struct Parent *parent = &parents[--nested];
    set_thread_pointer(parent->thread_pointer);
    ended = parent->ended;
    return &parent->frame;
}
// Ends the process: a forked one, or the first, and with it the machine.
static struct Frame *end_process(u32 status) {
    while (nested && !parents[nested - 1].copied) nested--;
    if (!nested) stop("the program ended with status ", status);
    child_status = status;
    copy(STACK, COPY, parents[nested - 1].copied);
    return parent();
}
static struct Frame *end_thread(u32 status) {
    if (!nested || parents[nested - 1].copied) return end_process(status << 8);
    if (ended) *ended = 0;
    return parent();
}

static struct Frame *start(struct Frame *frame) {
    enum { VM = 0x100, TLS = 0x80000, PARENT = 0x100000, CLEAR = 0x200000, CHILD = 0x1000000 };
    if (nested == MOST_NESTED) stop("too many threads wait: ", nested);
    struct Parent *parent = &parents[nested++];
    u64 flags = frame->rdi;
    *parent = (struct Parent){*frame, thread_pointer, ended, flags & VM ? 0 : mapped_end - STACK};
    parent->frame.rax = ++last_number;
    copy(COPY, STACK, parent->copied);
    if (flags & TLS) set_thread_pointer(frame->r8);
    if (flags & PARENT) *(u32 *)frame->rdx = last_number;
    if (flags & CHILD) *(u32 *)frame->r10 = last_number;
    ended = flags & CLEAR ? (u32 *)frame->r10 : 0;
    if (frame->rsi) frame->rsp = frame->rsi;
    frame->rax = 0;
    return frame;
}

struct Frame *fault(u64 *pushed) {
    say("exception ", pushed[0]);
    for (int at = 1; at < 4; at++) say("  ", pushed[at]);
    return end_process(4); // SIGILL
}

static u64 map(struct Frame *of) {
    if (of->r10 & 0x10) { // at this very place
        for (u64 at = 0; at < of->rsi; at += 8) *(u64 *)(of->rdi + at) = 0;
        return of->rdi;
    }
    if (!(of->r10 & 0x20)) return -19; // a file
    u64 at = mapped_end;
    mapped_end += (of->rsi + 4095) & -4096UL;
    if (mapped_end > COPY) stop("out of memory: ", of->rsi);
    return at;
}

static u64 now(void) {
    u32 low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (u64)high << 32 | low;
}

struct Frame *answer(struct Frame *frame) {
    u64 call = frame->rax, first = frame->rdi, second = frame->rsi, third = frame->rdx;
    u64 answer = 0;
    switch (call) {
    case 1: // write
        for (u64 at = 0; at < third; at++) out(0xE9, ((u8 *)second)[at]);
        answer = third;
        break;
    case 9: answer = map(frame); break;
    case 20: // writev
        for (u64 *part = (u64 *)second; third--; part += 2) {
            for (u64 at = 0; at < part[1]; at++) out(0xE9, ((u8 *)part[0])[at]);
            answer += part[1];
        }
        break;
    case 25: answer = -12; break; // mremap: no memory
    case 56: return start(frame);
    case 60: return end_thread(first);
    case 61: // wait4
        if (second) *(u32 *)second = child_status;
        answer = last_number;
        break;
    case 158: // arch_prctl: the thread pointer, or leave to use tiles
        if (first == 0x1002) set_thread_pointer(second);
        else if (first != 0x1023) answer = -22;
        break;
    case 202: // futex: there is nobody else who could wake, or wait
        if ((first = second & 127) == 1 || first == 10) break;
        if (*(u32 *)frame->rdi != (u32)third) answer = -11;
        else if (frame->r10) answer = -110;
        else stop("waits for ever at ", frame->rip);
        break;
    case 204: // sched_getaffinity
        *(u64 *)third = 1;
        answer = 8;
        break;
    case 228: // clock_gettime
        ((u64 *)second)[0] = now() / 1000000000;
        ((u64 *)second)[1] = now() % 1000000000;
        break;
    case 231: return end_process(first << 8);
    case 302: // prlimit64
        if (frame->r10) ((u64 *)frame->r10)[0] = ((u64 *)frame->r10)[1] = LOADED - STACK;
        break;
    case 39: case 186: answer = 1; break; // numbers of the process and the thread
    // What changes nothing here: poll, brk (always refused), memory, signals, lists that nobody
    // reads; random numbers are any.
    case 7: case 10: case 11: case 12: case 13: case 14: case 24: case 28: case 131: case 218:
    case 273: case 318:
        answer = call == 218 ? 1 : call == 318 ? second : 0;
        break;
    // What is not there, which the program gets on without: files, threads of a newer kind.
    case 89: case 157: case 257: case 262: case 334: case 435: answer = -38; break;
    default:
        answer = -38;
        say("unanswered system call ", call);
    }
    frame->rax = answer;
    return frame;
}

// The disk's answer to a command: as many blocks of 512 bytes.
static void read_disk(u8 command, u64 sector, u64 blocks, u64 to) {
    while (in(0x1F7) & 0x80) {}
    out(0x1F6, 0xE0 | (sector >> 24 & 15));
    out(0x1F2, blocks); // 0 means 256.
    for (int part = 0; part < 3; part++) out(0x1F3 + part, sector >> 8 * part);
    out(0x1F7, command);
    while (blocks--) {
        u64 words = 256;
        while ((in(0x1F7) & 0x88) != 8) {}
        __asm__ volatile("rep insw" : "+D"(to), "+c"(words) : "d"(0x1F0) : "memory");
    }
}

// Puts a program to the addresses that it is linked to, from LOADED on; answers where it begins.
static u64 load(u64 file, u64 *auxiliary) {
    u64 headers = file + *(u64 *)(file + 32), count = *(u16 *)(file + 56);
    for (u64 at = headers; at < headers + 56 * count; at += 56) {
        u64 *header = (u64 *)at;
        if ((u32)header[0] != 1) continue;
        copy(header[2], file + header[1], header[4]);
        mapped_end = (header[2] + header[5] + 4095) & -4096UL;
    }
    u64 values[] = {3, LOADED + headers - file, 4, 56, 5, count, 6, 4096, 23, 0, 25, LOADED, 0, 0};
    copy((u64)auxiliary, (u64)values, sizeof values);
    return *(u64 *)(file + 24);
}

// The disk holds the program's arguments in 512 bytes, each ended by a zero, and then the program.
void begin(void) {
    last_number = 1;
    for (int at = 0; at < 32; at++) {
        u64 to = (u64)exceptions + 16 * at;
        handlers[2 * at] = (to & 0xFFFF) | 8 << 16 | 0x8E00UL << 32 | (to >> 16) << 48;
    }
    struct { u16 size; u64 at; } __attribute__((packed)) handlers_at = {511, (u64)handlers};
    __asm__ volatile("lidt %0" ::"m"(handlers_at));
    write_msr(0xC0000081, 8UL << 32);
    write_msr(0xC0000082, (u64)system_call);
    write_msr(0xC0000084, 0x700);
    u16 about[256];
    read_disk(0xEC, 0, 1, (u64)about);
    u64 sectors = about[60] | (u64)about[61] << 16;
    for (u64 at = 0; at < sectors; at += 256) {
        read_disk(0x20, at, sectors - at < 256 ? sectors - at : 256, COPY + 512 * at);
    }
    u64 *stack = (u64 *)(LOADED - 4096), *at = stack + 1;
    copy(LOADED - 1024, COPY, 512);
    for (char *text = (char *)LOADED - 1024; *text; (*stack)++) {
        *at++ = (u64)text;
        while (*text++) {}
    }
    *at++ = 0;
    *at++ = (u64)"MALLOC_ARENA_MAX=1";
    *at++ = 0;
    u64 entry = load(COPY + 512, at);
    __asm__ volatile("mov %0, %%rsp; jmp *%1" ::"r"(stack), "r"(entry), "d"(0));
}
