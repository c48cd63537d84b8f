// The run time of a pool of threads, as code of a program: it forks and joins inside of dispatches.
//
// `fork_join.py` adds these functions to each executable. They are of the LLVM dialect since IREE
// has generated code already; linking makes one of equal ones. Linux on x86-64.
//
// A job is all tiles (IREE: workgroups) of one dispatch, in at most 4095 units of `per` tiles. The
// units are cut into equal shares, one a participant: number 0 is the caller, the others helpers.
// Each takes units from the front of its own share, then from the backs of the others'.
//
// The pool is one private page range of the process, zero at first, bytes at:
//      0  job: epoch << 24 | shares << 12 | units. Its release publishes the line
//      8  function   16 environment   24 dispatch state   32 MXCSR   40 tiles   48 per
//    128  units that are done    136 status of tiles
//    256  owner: 1 while a caller has the pool    260 helpers asleep    264 what sleepers wait on
//    272  the cycle until which the pool is off
//    280  core that helpers keep off, the last caller's    284 jobs in turn that nobody helped with
//    288  jobs    296 jobs for which the caller waited    304 cycles of that    312 turned off
//    384  turn of helpers: those of another one return    392 cycles that helpers spin
//    408  how long a caller waits for a lost helper at least    416 most cycles to be off
//    424  0, or where records of dispatches go    432 helpers that run    440 their policy, and 0
//    512  the cores of the process, a mask of 1024 bits    640 the same without the caller's core
//   1024  of each participant, every 128: share: epoch << 24 | end << 12 | begin
//      8  units taken    16 times asleep    24 the thread's number for the system
//
// A share of an older epoch is whole: who comes first says so by taking from it. All is taken by
// compare and exchange with the epoch, so that a helper that was away takes nothing of a job that
// it has not read: a job ends only when each of its shares has its epoch and is empty. What a job
// consists of is read after a unit is taken, when the job cannot end.
//
// Orderings are numbers of LLVM: 2 monotonic, 4 acquire, 5 release.
//
// A program has the word `pyc_threads`: 0, or the pool's address | participants << 1 | wakes.

llvm.mlir.global internal @pyc_threads(0 : i64) {alignment = 8 : i64} : i64

// Run tile `index` of the dispatch; return its status.
llvm.func internal @pyc_threads_tile(%function: !llvm.ptr, %environment: !llvm.ptr, %state: !llvm.ptr, %workgroup: !llvm.ptr, %index: i64) -> i32 {
  %xs_at = llvm.getelementptr %state[12] : (!llvm.ptr) -> !llvm.ptr, i8
  %ys_at = llvm.getelementptr %state[16] : (!llvm.ptr) -> !llvm.ptr, i8
  %xs = llvm.load %xs_at : !llvm.ptr -> i32
  %ys = llvm.load %ys_at : !llvm.ptr -> i32
  %i = llvm.trunc %index : i64 to i32
  %x = llvm.urem %i, %xs : i32
  %row = llvm.udiv %i, %xs : i32
  %y = llvm.urem %row, %ys : i32
  %z32 = llvm.udiv %row, %ys : i32
  %z = llvm.trunc %z32 : i32 to i16
  %y_at = llvm.getelementptr %workgroup[4] : (!llvm.ptr) -> !llvm.ptr, i8
  %z_at = llvm.getelementptr %workgroup[8] : (!llvm.ptr) -> !llvm.ptr, i8
  llvm.store %x, %workgroup : i32, !llvm.ptr
  llvm.store %y, %y_at : i32, !llvm.ptr
  llvm.store %z, %z_at : i16, !llvm.ptr
  %status = llvm.call %function(%environment, %state, %workgroup) : !llvm.ptr, (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
  llvm.return %status : i32
}

// Take units of the job `word` as participant `me` and run them, until none is left; return how
// many.
llvm.func internal @pyc_threads_take(%pool: !llvm.ptr, %word: i64, %me: i64) -> i64 attributes {no_inline} {
  %zero32 = llvm.mlir.constant(0 : i32) : i32
  %one32 = llvm.mlir.constant(1 : i32) : i32
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %field = llvm.mlir.constant(12 : i64) : i64
  %mask = llvm.mlir.constant(4095 : i64) : i64
  %ends = llvm.mlir.constant(4096 : i64) : i64
  %below = llvm.mlir.constant(24 : i64) : i64
  %line = llvm.mlir.constant(128 : i64) : i64
  %first_line = llvm.mlir.constant(1024 : i64) : i64
  %workgroup = llvm.alloca %one32 x !llvm.array<4 x i64> {alignment = 16 : i64} : (i32) -> !llvm.ptr
  %mode = llvm.alloca %one32 x i32 : (i32) -> !llvm.ptr
  // No memory of its own: dispatches that ask for it do not come here.
  %empty = llvm.mlir.zero : !llvm.array<4 x i64>
  llvm.store %empty, %workgroup : !llvm.array<4 x i64>, !llvm.ptr
  %function_at = llvm.getelementptr %pool[8] : (!llvm.ptr) -> !llvm.ptr, i8
  %environment_at = llvm.getelementptr %pool[16] : (!llvm.ptr) -> !llvm.ptr, i8
  %state_at = llvm.getelementptr %pool[24] : (!llvm.ptr) -> !llvm.ptr, i8
  %mode_at = llvm.getelementptr %pool[32] : (!llvm.ptr) -> !llvm.ptr, i8
  %tiles_at = llvm.getelementptr %pool[40] : (!llvm.ptr) -> !llvm.ptr, i8
  %per_at = llvm.getelementptr %pool[48] : (!llvm.ptr) -> !llvm.ptr, i8
  %done_at = llvm.getelementptr %pool[128] : (!llvm.ptr) -> !llvm.ptr, i8
  %status_at = llvm.getelementptr %pool[136] : (!llvm.ptr) -> !llvm.ptr, i8
  %units = llvm.and %word, %mask : i64
  %above = llvm.lshr %word, %field : i64
  %shares = llvm.and %above, %mask : i64
  %epoch = llvm.lshr %word, %below : i64
  %stamp = llvm.shl %epoch, %below : i64
  llvm.br ^share(%zero, %zero : i64, i64)
^share(%turn: i64, %sum: i64):
  %another = llvm.icmp "ult" %turn, %shares : i64
  llvm.cond_br %another, ^whole, ^end
^whole:
  %next_share = llvm.add %me, %turn : i64
  %s = llvm.urem %next_share, %shares : i64
  %s1 = llvm.add %s, %one : i64
  %begin0 = llvm.mul %units, %s : i64
  %begin = llvm.udiv %begin0, %shares : i64
  %end0 = llvm.mul %units, %s1 : i64
  %end = llvm.udiv %end0, %shares : i64
  %end_bits = llvm.shl %end, %field : i64
  %both = llvm.or %end_bits, %begin : i64
  %fresh = llvm.or %stamp, %both : i64
  %offset0 = llvm.mul %s, %line : i64
  %offset = llvm.add %offset0, %first_line : i64
  %share_at = llvm.getelementptr %pool[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %is_own = llvm.icmp "eq" %turn, %zero : i64
  %start = "llvm.load"(%share_at) <{alignment = 8 : i64, ordering = 4 : i64}> : (!llvm.ptr) -> i64
  llvm.br ^claim(%start, %zero : i64, i64)
^claim(%seen: i64, %count: i64):
  %seen_epoch = llvm.lshr %seen, %below : i64
  %ahead0 = llvm.sub %epoch, %seen_epoch : i64
  %ahead = llvm.shl %ahead0, %below : i64
  %is_past = llvm.icmp "slt" %ahead, %zero : i64
  %is_same = llvm.icmp "eq" %ahead, %zero : i64
  %now = llvm.select %is_same, %seen, %fresh : i1, i64
  %low = llvm.and %now, %mask : i64
  %now_above = llvm.lshr %now, %field : i64
  %high = llvm.and %now_above, %mask : i64
  %is_empty = llvm.icmp "uge" %low, %high : i64
  %none = llvm.or %is_empty, %is_past : i1
  llvm.cond_br %none, ^report, ^exchange
^exchange:
  %from_front = llvm.add %now, %one : i64
  %from_back = llvm.sub %now, %ends : i64
  %after = llvm.select %is_own, %from_front, %from_back : i1, i64
  %last = llvm.sub %high, %one : i64
  %unit = llvm.select %is_own, %low, %last : i1, i64
  %pair = llvm.cmpxchg %share_at, %seen, %after acq_rel monotonic : !llvm.ptr, i64
  %other = llvm.extractvalue %pair[0] : !llvm.struct<(i64, i1)>
  %taken = llvm.extractvalue %pair[1] : !llvm.struct<(i64, i1)>
  llvm.cond_br %taken, ^work, ^claim(%other, %count : i64, i64)
^work:
  %function = llvm.load %function_at : !llvm.ptr -> !llvm.ptr
  %environment = llvm.load %environment_at : !llvm.ptr -> !llvm.ptr
  %state = llvm.load %state_at : !llvm.ptr -> !llvm.ptr
  %bits = llvm.load %mode_at : !llvm.ptr -> i32
  %tiles = llvm.load %tiles_at : !llvm.ptr -> i64
  %per = llvm.load %per_at : !llvm.ptr -> i64
  // How the caller rounds and treats denormals.
  llvm.store %bits, %mode : i32, !llvm.ptr
  llvm.call_intrinsic "llvm.x86.sse.ldmxcsr"(%mode) : (!llvm.ptr) -> ()
  %tile0 = llvm.mul %unit, %per : i64
  %until0 = llvm.add %tile0, %per : i64
  %until = llvm.intr.umin(%until0, %tiles) : (i64, i64) -> i64
  llvm.br ^tile(%tile0 : i64)
^tile(%tile: i64):
  %inside = llvm.icmp "ult" %tile, %until : i64
  llvm.cond_br %inside, ^run, ^taken
^run:
  %status = llvm.call @pyc_threads_tile(%function, %environment, %state, %workgroup, %tile) : (!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> i32
  %tile1 = llvm.add %tile, %one : i64
  %is_good = llvm.icmp "eq" %status, %zero32 : i32
  llvm.cond_br %is_good, ^tile(%tile1 : i64), ^failed
^failed:
  %worst = llvm.atomicrmw umax %status_at, %status monotonic : !llvm.ptr, i32
  llvm.br ^tile(%tile1 : i64)
^taken:
  %count1 = llvm.add %count, %one : i64
  %again = "llvm.load"(%share_at) <{alignment = 8 : i64, ordering = 4 : i64}> : (!llvm.ptr) -> i64
  llvm.br ^claim(%again, %count1 : i64, i64)
^report:
  %any = llvm.icmp "ne" %count, %zero : i64
  llvm.cond_br %any, ^add, ^step
^add:
  %before = llvm.atomicrmw add %done_at, %count acq_rel : !llvm.ptr, i64
  llvm.br ^step
^step:
  %turn1 = llvm.add %turn, %one : i64
  %sum1 = llvm.add %sum, %count : i64
  llvm.br ^share(%turn1, %sum1 : i64, i64)
^end:
  llvm.return %sum : i64
}

// Turn the pool off for 20 times the cycles that were lost, so that at most a twentieth is.
llvm.func internal @pyc_threads_off(%pool: !llvm.ptr, %now: i64, %cycles: i64) attributes {no_inline} {
  %one = llvm.mlir.constant(1 : i64) : i64
  %times = llvm.mlir.constant(20 : i64) : i64
  %until_at = llvm.getelementptr %pool[272] : (!llvm.ptr) -> !llvm.ptr, i8
  %count_at = llvm.getelementptr %pool[312] : (!llvm.ptr) -> !llvm.ptr, i8
  %most_at = llvm.getelementptr %pool[416] : (!llvm.ptr) -> !llvm.ptr, i8
  %most = llvm.load %most_at : !llvm.ptr -> i64
  %fair = llvm.mul %cycles, %times : i64
  %off = llvm.intr.umin(%fair, %most) : (i64, i64) -> i64
  %until = llvm.add %now, %off : i64
  "llvm.store"(%until, %until_at) <{alignment = 8 : i64, ordering = 2 : i64}> : (i64, !llvm.ptr) -> ()
  %count = llvm.atomicrmw add %count_at, %one monotonic : !llvm.ptr, i64
  llvm.return
}

// Move helpers off the caller's core: the system wakes them there, where they would wait for it. Or
// onto it, `near`, where they get the time that the caller does not take.
llvm.func internal @pyc_threads_place(%pool: !llvm.ptr, %near: i1) attributes {no_inline} {
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %six = llvm.mlir.constant(6 : i64) : i64
  %three = llvm.mlir.constant(3 : i64) : i64
  %bits = llvm.mlir.constant(63 : i64) : i64
  %line = llvm.mlir.constant(128 : i64) : i64
  %core_mask = llvm.mlir.constant(1023 : i32) : i32
  %yes = llvm.mlir.constant(1 : i1) : i1
  %none = llvm.mlir.zero : !llvm.array<16 x i64>
  %placed_at = llvm.getelementptr %pool[280] : (!llvm.ptr) -> !llvm.ptr, i8
  %helpers_at = llvm.getelementptr %pool[432] : (!llvm.ptr) -> !llvm.ptr, i8
  %cores_at = llvm.getelementptr %pool[512] : (!llvm.ptr) -> !llvm.ptr, i8
  %others_at = llvm.getelementptr %pool[640] : (!llvm.ptr) -> !llvm.ptr, i8
  // Linux keeps the core's number, below 4096, beside the counter.
  %both = llvm.call_intrinsic "llvm.x86.rdtscp"() : () -> !llvm.struct<(i64, i32)>
  %aux = llvm.extractvalue %both[1] : !llvm.struct<(i64, i32)>
  %core32 = llvm.and %aux, %core_mask : i32
  %placed = llvm.load %placed_at : !llvm.ptr -> i32
  %nowhere = llvm.mlir.constant(-1 : i32) : i32
  %goal = llvm.select %near, %nowhere, %core32 : i1, i32
  %is_same = llvm.icmp "eq" %goal, %placed : i32
  %far = llvm.xor %near, %yes : i1
  %is_placed = llvm.and %is_same, %far : i1
  llvm.cond_br %is_placed, ^end, ^mask
^mask:
  llvm.store %goal, %placed_at : i32, !llvm.ptr
  %core = llvm.zext %core32 : i32 to i64
  %all = llvm.load %cores_at : !llvm.ptr -> !llvm.array<16 x i64>
  %others = llvm.select %near, %none, %all : i1, !llvm.array<16 x i64>
  llvm.store %others, %others_at : !llvm.array<16 x i64>, !llvm.ptr
  %number = llvm.lshr %core, %six : i64
  %offset = llvm.shl %number, %three : i64
  %bit = llvm.and %core, %bits : i64
  %own = llvm.shl %one, %bit : i64
  %minus = llvm.mlir.constant(-1 : i64) : i64
  %rest = llvm.xor %own, %minus : i64
  %part_at = llvm.getelementptr %others_at[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %part = llvm.load %part_at : !llvm.ptr -> i64
  %without = llvm.and %part, %rest : i64
  %bits_of_part = llvm.select %near, %own, %without : i1, i64
  llvm.store %bits_of_part, %part_at : i64, !llvm.ptr
  %helpers = llvm.load %helpers_at : !llvm.ptr -> i64
  llvm.br ^each(%zero : i64)
^each(%i: i64):
  %another = llvm.icmp "ult" %i, %helpers : i64
  llvm.cond_br %another, ^move, ^end
^move:
  %i1 = llvm.add %i, %one : i64
  %line_offset = llvm.mul %i1, %line : i64
  %lines = llvm.getelementptr %pool[1048] : (!llvm.ptr) -> !llvm.ptr, i8
  %thread_at = llvm.getelementptr %lines[%line_offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %number_of_thread = llvm.load %thread_at : !llvm.ptr -> i64
  // It has not begun. 0 would be the caller.
  %has_none = llvm.icmp "eq" %number_of_thread, %zero : i64
  %thread = llvm.select %has_none, %minus, %number_of_thread : i1, i64
  // sched_setaffinity(thread, bytes, mask)
  %affinity = llvm.mlir.constant(203 : i64) : i64
  %moved = llvm.inline_asm has_side_effects asm_dialect = att "syscall", "={rax},{rax},{rdi},{rsi},{rdx},~{rcx},~{r11},~{memory}" %affinity, %thread, %line, %others_at : (i64, i64, i64, !llvm.ptr) -> i64
  llvm.br ^each(%i1 : i64)
^end:
  llvm.return
}

// Take `cycles` into what is expected: half of what is less, an eighth of what is more, at most
// once the expectation.
llvm.func internal @pyc_threads_expect(%expected_at: !llvm.ptr, %cycles: i64) {
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %three = llvm.mlir.constant(3 : i64) : i64
  %expected = llvm.load %expected_at : !llvm.ptr -> i64
  %difference = llvm.sub %cycles, %expected : i64
  %is_less = llvm.icmp "slt" %difference, %zero : i64
  %more = llvm.intr.smin(%difference, %expected) : (i64, i64) -> i64
  %half = llvm.ashr %difference, %one : i64
  %eighth = llvm.ashr %more, %three : i64
  %change = llvm.select %is_less, %half, %eighth : i1, i64
  %next = llvm.add %expected, %change : i64
  %is_first = llvm.icmp "eq" %expected, %zero : i64
  %new = llvm.select %is_first, %cycles, %next : i1, i64
  llvm.store %new, %expected_at : i64, !llvm.ptr
  llvm.return
}

// Run all tiles of a dispatch, with helpers where that can be and pays; return the status of the
// tiles. What pays is measured, as cores differ in what it takes to hand data over: `times` has
// the number of calls, the tiles, and the cycles to expect alone and with helpers. The first calls
// take turns, later ones the better way and each 64th the other one; with other tiles than in the
// last call it begins anew, with helpers.
llvm.func internal @pyc_threads_fork(%function: !llvm.ptr, %environment: !llvm.ptr, %state: !llvm.ptr, %given: !llvm.ptr, %program: i64, %times: !llvm.ptr) -> i32 attributes {no_inline} {
  %zero32 = llvm.mlir.constant(0 : i32) : i32
  %one32 = llvm.mlir.constant(1 : i32) : i32
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %seven = llvm.mlir.constant(127 : i64) : i64
  %page = llvm.mlir.constant(-4096 : i64) : i64
  %field = llvm.mlir.constant(12 : i64) : i64
  %below = llvm.mlir.constant(24 : i64) : i64
  %mask = llvm.mlir.constant(4095 : i64) : i64
  %address = llvm.and %program, %page : i64
  %pool = llvm.inttoptr %address : i64 to !llvm.ptr
  %xs_at = llvm.getelementptr %state[12] : (!llvm.ptr) -> !llvm.ptr, i8
  %ys_at = llvm.getelementptr %state[16] : (!llvm.ptr) -> !llvm.ptr, i8
  %zs_at = llvm.getelementptr %state[20] : (!llvm.ptr) -> !llvm.ptr, i8
  %memory_at = llvm.getelementptr %given[24] : (!llvm.ptr) -> !llvm.ptr, i8
  %xs32 = llvm.load %xs_at : !llvm.ptr -> i32
  %ys32 = llvm.load %ys_at : !llvm.ptr -> i32
  %zs16 = llvm.load %zs_at : !llvm.ptr -> i16
  %memory = llvm.load %memory_at : !llvm.ptr -> i32
  %xs = llvm.zext %xs32 : i32 to i64
  %ys = llvm.zext %ys32 : i32 to i64
  %zs = llvm.zext %zs16 : i16 to i64
  %plane = llvm.mul %xs, %ys : i64
  %tiles = llvm.mul %plane, %zs : i64
  %owner_at = llvm.getelementptr %pool[256] : (!llvm.ptr) -> !llvm.ptr, i8
  %asleep_at = llvm.getelementptr %pool[260] : (!llvm.ptr) -> !llvm.ptr, i8
  %until_at = llvm.getelementptr %pool[272] : (!llvm.ptr) -> !llvm.ptr, i8
  %zero1 = llvm.mlir.constant(0 : i1) : i1
  %times_tiles_at = llvm.getelementptr %times[8] : (!llvm.ptr) -> !llvm.ptr, i8
  %alone_at = llvm.getelementptr %times[16] : (!llvm.ptr) -> !llvm.ptr, i8
  %helped_at = llvm.getelementptr %times[24] : (!llvm.ptr) -> !llvm.ptr, i8
  %is_single = llvm.icmp "ule" %tiles, %one : i64
  %has_memory = llvm.icmp "ne" %memory, %zero32 : i32
  %alone = llvm.or %is_single, %has_memory : i1
  llvm.cond_br %alone, ^serial, ^look
^look:
  %until = "llvm.load"(%until_at) <{alignment = 8 : i64, ordering = 2 : i64}> : (!llvm.ptr) -> i64
  %started = llvm.call_intrinsic "llvm.readcyclecounter"() : () -> i64
  %left = llvm.sub %until, %started : i64
  // More than it can be: a machine that slept counts from 0.
  %seconds_at_most = llvm.mlir.constant(8589934592 : i64) : i64
  %is_off = llvm.icmp "ult" %left, %seconds_at_most : i64
  llvm.cond_br %is_off, ^serial, ^choose
^choose:
  %trials = llvm.mlir.constant(16 : i64) : i64
  %rarely = llvm.mlir.constant(63 : i64) : i64
  %last_tiles = llvm.load %times_tiles_at : !llvm.ptr -> i64
  %is_other = llvm.icmp "ne" %last_tiles, %tiles : i64
  llvm.cond_br %is_other, ^anew, ^known
^anew:
  llvm.store %zero, %times : i64, !llvm.ptr
  llvm.store %tiles, %times_tiles_at : i64, !llvm.ptr
  llvm.store %zero, %alone_at : i64, !llvm.ptr
  llvm.store %zero, %helped_at : i64, !llvm.ptr
  llvm.br ^own
^known:
  %calls0 = llvm.load %times : !llvm.ptr -> i64
  %calls = llvm.add %calls0, %one : i64
  llvm.store %calls, %times : i64, !llvm.ptr
  %alone_cycles = llvm.load %alone_at : !llvm.ptr -> i64
  %helped_cycles = llvm.load %helped_at : !llvm.ptr -> i64
  %pays = llvm.icmp "ule" %helped_cycles, %alone_cycles : i64
  %odd = llvm.trunc %calls : i64 to i1
  %is_early = llvm.icmp "ult" %calls, %trials : i64
  %phase = llvm.and %calls, %rarely : i64
  %is_turn_of_other = llvm.icmp "eq" %phase, %zero : i64
  %later = llvm.xor %pays, %is_turn_of_other : i1
  %even = llvm.icmp "eq" %odd, %zero1 : i1
  %is_forked = llvm.select %is_early, %even, %later : i1, i1
  llvm.cond_br %is_forked, ^own, ^serial
^own:
  %owner = llvm.atomicrmw xchg %owner_at, %one32 acquire : !llvm.ptr, i32
  %is_owned = llvm.icmp "ne" %owner, %zero32 : i32
  llvm.cond_br %is_owned, ^serial, ^post
^serial:
  %began = llvm.call_intrinsic "llvm.readcyclecounter"() : () -> i64
  %copy = llvm.alloca %one32 x !llvm.array<4 x i64> {alignment = 16 : i64} : (i32) -> !llvm.ptr
  %state_of = llvm.load %given : !llvm.ptr -> !llvm.array<4 x i64>
  llvm.store %state_of, %copy : !llvm.array<4 x i64>, !llvm.ptr
  llvm.br ^tile(%zero, %zero32 : i64, i32)
^tile(%tile: i64, %so_far: i32):
  %inside = llvm.icmp "ult" %tile, %tiles : i64
  llvm.cond_br %inside, ^run, ^ran
^run:
  %status = llvm.call @pyc_threads_tile(%function, %environment, %state, %copy, %tile) : (!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64) -> i32
  %worse = llvm.intr.umax(%so_far, %status) : (i32, i32) -> i32
  %tile1 = llvm.add %tile, %one : i64
  llvm.br ^tile(%tile1, %worse : i64, i32)
^ran:
  %ran_until = llvm.call_intrinsic "llvm.readcyclecounter"() : () -> i64
  %ran = llvm.sub %ran_until, %began : i64
  llvm.call @pyc_threads_expect(%alone_at, %ran) : (!llvm.ptr, i64) -> ()
  llvm.br ^out(%so_far, %ran, %zero : i32, i64, i64)
^post:
  %function_at = llvm.getelementptr %pool[8] : (!llvm.ptr) -> !llvm.ptr, i8
  %environment_at = llvm.getelementptr %pool[16] : (!llvm.ptr) -> !llvm.ptr, i8
  %state_at = llvm.getelementptr %pool[24] : (!llvm.ptr) -> !llvm.ptr, i8
  %mode_at = llvm.getelementptr %pool[32] : (!llvm.ptr) -> !llvm.ptr, i8
  %tiles_at = llvm.getelementptr %pool[40] : (!llvm.ptr) -> !llvm.ptr, i8
  %per_at = llvm.getelementptr %pool[48] : (!llvm.ptr) -> !llvm.ptr, i8
  %done_at = llvm.getelementptr %pool[128] : (!llvm.ptr) -> !llvm.ptr, i8
  %status_at = llvm.getelementptr %pool[136] : (!llvm.ptr) -> !llvm.ptr, i8
  %jobs_at = llvm.getelementptr %pool[288] : (!llvm.ptr) -> !llvm.ptr, i8
  %tiles_less = llvm.sub %tiles, %one : i64
  %per0 = llvm.udiv %tiles_less, %mask : i64
  %per = llvm.add %per0, %one : i64
  %whole0 = llvm.udiv %tiles_less, %per : i64
  %units = llvm.add %whole0, %one : i64
  %participants0 = llvm.lshr %program, %one : i64
  %participants = llvm.and %participants0, %seven : i64
  %shares = llvm.intr.umin(%units, %participants) : (i64, i64) -> i64
  llvm.store %function, %function_at : !llvm.ptr, !llvm.ptr
  llvm.store %environment, %environment_at : !llvm.ptr, !llvm.ptr
  llvm.store %state, %state_at : !llvm.ptr, !llvm.ptr
  llvm.call_intrinsic "llvm.x86.sse.stmxcsr"(%mode_at) : (!llvm.ptr) -> ()
  llvm.store %tiles, %tiles_at : i64, !llvm.ptr
  llvm.store %per, %per_at : i64, !llvm.ptr
  "llvm.store"(%zero, %done_at) <{alignment = 8 : i64, ordering = 2 : i64}> : (i64, !llvm.ptr) -> ()
  "llvm.store"(%zero32, %status_at) <{alignment = 4 : i64, ordering = 2 : i64}> : (i32, !llvm.ptr) -> ()
  %old = "llvm.load"(%pool) <{alignment = 8 : i64, ordering = 2 : i64}> : (!llvm.ptr) -> i64
  %old_epoch = llvm.lshr %old, %below : i64
  %epoch = llvm.add %old_epoch, %one : i64
  %stamp = llvm.shl %epoch, %below : i64
  %shares_bits = llvm.shl %shares, %field : i64
  %low = llvm.or %shares_bits, %units : i64
  %word = llvm.or %stamp, %low : i64
  // Every 16 million jobs no share may be too old: epochs are compared by their difference.
  %turn_bits = llvm.mlir.constant(40 : i64) : i64
  %turn = llvm.shl %epoch, %turn_bits : i64
  %is_turn = llvm.icmp "eq" %turn, %zero : i64
  llvm.cond_br %is_turn, ^renew(%zero : i64), ^publish
^renew(%line: i64):
  %line_bytes = llvm.mlir.constant(128 : i64) : i64
  %first_line = llvm.mlir.constant(1024 : i64) : i64
  %lines = llvm.mlir.constant(64 : i64) : i64
  %past = llvm.shl %old_epoch, %below : i64
  %offset0 = llvm.mul %line, %line_bytes : i64
  %offset = llvm.add %offset0, %first_line : i64
  %share_at = llvm.getelementptr %pool[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  "llvm.store"(%past, %share_at) <{alignment = 8 : i64, ordering = 2 : i64}> : (i64, !llvm.ptr) -> ()
  %line1 = llvm.add %line, %one : i64
  %is_another = llvm.icmp "ult" %line1, %lines : i64
  llvm.cond_br %is_another, ^renew(%line1 : i64), ^publish
^publish:
  "llvm.store"(%word, %pool) <{alignment = 8 : i64, ordering = 5 : i64}> : (i64, !llvm.ptr) -> ()
  // A sleeper that is not seen misses a job, which is done without it.
  %asleep = "llvm.load"(%asleep_at) <{alignment = 4 : i64, ordering = 2 : i64}> : (!llvm.ptr) -> i32
  %wakes0 = llvm.trunc %program : i64 to i32
  %wakes = llvm.and %wakes0, %one32 : i32
  %someone = llvm.icmp "ne" %asleep, %zero32 : i32
  %may = llvm.icmp "ne" %wakes, %zero32 : i32
  %is_woken = llvm.and %someone, %may : i1
  llvm.cond_br %is_woken, ^wake, ^take
^wake:
  llvm.call @pyc_threads_place(%pool, %zero1) : (!llvm.ptr, i1) -> ()
  %waited_at = llvm.getelementptr %pool[264] : (!llvm.ptr) -> !llvm.ptr, i8
  // In this order: who counts itself after the exchange stays counted, who did before it does not
  // find the value that it read.
  %nobody = llvm.atomicrmw xchg %asleep_at, %zero32 seq_cst : !llvm.ptr, i32
  %changed = llvm.atomicrmw add %waited_at, %one32 seq_cst : !llvm.ptr, i32
  // futex(at, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, all)
  %futex = llvm.mlir.constant(202 : i64) : i64
  %wake = llvm.mlir.constant(129 : i64) : i64
  %all = llvm.mlir.constant(64 : i64) : i64
  %woken = llvm.inline_asm has_side_effects asm_dialect = att "syscall", "={rax},{rax},{rdi},{rsi},{rdx},~{rcx},~{r11},~{memory}" %futex, %waited_at, %wake, %all : (i64, !llvm.ptr, i64, i64) -> i64
  llvm.br ^take
^take:
  %own_units = llvm.call @pyc_threads_take(%pool, %word, %zero) : (!llvm.ptr, i64, i64) -> i64
  %jobs = llvm.load %jobs_at : !llvm.ptr -> i64
  %jobs1 = llvm.add %jobs, %one : i64
  llvm.store %jobs1, %jobs_at : i64, !llvm.ptr
  %unhelped_at = llvm.getelementptr %pool[284] : (!llvm.ptr) -> !llvm.ptr, i8
  %many_unhelped = llvm.mlir.constant(32 : i32) : i32
  %unhelped = llvm.load %unhelped_at : !llvm.ptr -> i32
  %unhelped1 = llvm.add %unhelped, %one32 : i32
  %had_help = llvm.icmp "ult" %own_units, %units : i64
  %unhelped2 = llvm.select %had_help, %zero32, %unhelped1 : i1, i32
  %is_long = llvm.icmp "ugt" %unhelped2, %many_unhelped : i32
  %unhelped3 = llvm.select %is_long, %zero32, %unhelped2 : i1, i32
  llvm.store %unhelped3, %unhelped_at : i32, !llvm.ptr
  llvm.cond_br %is_long, ^place, ^look_again
^place:
  llvm.call @pyc_threads_place(%pool, %zero1) : (!llvm.ptr, i1) -> ()
  llvm.br ^look_again
^look_again:
  %done0 = "llvm.load"(%done_at) <{alignment = 8 : i64, ordering = 4 : i64}> : (!llvm.ptr) -> i64
  %is_done = llvm.icmp "uge" %done0, %units : i64
  llvm.cond_br %is_done, ^leave(%zero : i64), ^wait
^wait:
  // What is left is one unit of each helper. Who waits longer than for two of its own lost one.
  %slack_at = llvm.getelementptr %pool[408] : (!llvm.ptr) -> !llvm.ptr, i8
  %waiting = llvm.call_intrinsic "llvm.readcyclecounter"() : () -> i64
  %own = llvm.sub %waiting, %started : i64
  %divisor = llvm.intr.umax(%own_units, %one) : (i64, i64) -> i64
  %unit0 = llvm.udiv %own, %divisor : i64
  %unit1 = llvm.add %unit0, %unit0 : i64
  %slack = llvm.load %slack_at : !llvm.ptr -> i64
  %fair = llvm.add %unit1, %slack : i64
  llvm.br ^spin(%one : i64)
^spin(%n: i64):
  llvm.call_intrinsic "llvm.x86.sse2.pause"() : () -> ()
  %done = "llvm.load"(%done_at) <{alignment = 8 : i64, ordering = 4 : i64}> : (!llvm.ptr) -> i64
  %finished = llvm.icmp "uge" %done, %units : i64
  llvm.cond_br %finished, ^joined, ^more
^more:
  %n1 = llvm.add %n, %one : i64
  %sixty_three = llvm.mlir.constant(63 : i64) : i64
  %often = llvm.and %n1, %sixty_three : i64
  %is_often = llvm.icmp "eq" %often, %zero : i64
  llvm.cond_br %is_often, ^clock, ^spin(%n1 : i64)
^clock:
  %clock = llvm.call_intrinsic "llvm.readcyclecounter"() : () -> i64
  %so_long = llvm.sub %clock, %waiting : i64
  %is_unfair = llvm.icmp "ugt" %so_long, %fair : i64
  llvm.cond_br %is_unfair, ^rescue, ^spin(%n1 : i64)
^rescue:
  // Its core went to another thread or process. It gets this one, which has nothing else to do.
  %time = llvm.alloca %one32 x !llvm.array<2 x i64> {alignment = 16 : i64} : (i32) -> !llvm.ptr
  %seconds = llvm.mlir.zero : !llvm.array<2 x i64>
  %nanoseconds = llvm.mlir.constant(50000 : i64) : i64
  %nanoseconds_at = llvm.getelementptr %time[8] : (!llvm.ptr) -> !llvm.ptr, i8
  llvm.store %seconds, %time : !llvm.array<2 x i64>, !llvm.ptr
  llvm.store %nanoseconds, %nanoseconds_at : i64, !llvm.ptr
  %near = llvm.mlir.constant(1 : i1) : i1
  llvm.call @pyc_threads_place(%pool, %near) : (!llvm.ptr, i1) -> ()
  llvm.br ^sleep
^sleep:
  // nanosleep(time, nowhere)
  %nanosleep = llvm.mlir.constant(35 : i64) : i64
  %slept = llvm.inline_asm has_side_effects asm_dialect = att "syscall", "={rax},{rax},{rdi},{rsi},~{rcx},~{r11},~{memory}" %nanosleep, %time, %zero : (i64, !llvm.ptr, i64) -> i64
  %done1 = "llvm.load"(%done_at) <{alignment = 8 : i64, ordering = 4 : i64}> : (!llvm.ptr) -> i64
  %is_over = llvm.icmp "uge" %done1, %units : i64
  llvm.cond_br %is_over, ^joined, ^sleep
^joined:
  %waits_at = llvm.getelementptr %pool[296] : (!llvm.ptr) -> !llvm.ptr, i8
  %cycles_at = llvm.getelementptr %pool[304] : (!llvm.ptr) -> !llvm.ptr, i8
  %ended = llvm.call_intrinsic "llvm.readcyclecounter"() : () -> i64
  %idle = llvm.sub %ended, %waiting : i64
  %waits = llvm.load %waits_at : !llvm.ptr -> i64
  %waits1 = llvm.add %waits, %one : i64
  llvm.store %waits1, %waits_at : i64, !llvm.ptr
  %cycles = llvm.load %cycles_at : !llvm.ptr -> i64
  %cycles1 = llvm.add %cycles, %idle : i64
  llvm.store %cycles1, %cycles_at : i64, !llvm.ptr
  %is_lost = llvm.icmp "ugt" %idle, %fair : i64
  llvm.cond_br %is_lost, ^off, ^leave(%idle : i64)
^off:
  llvm.call @pyc_threads_off(%pool, %ended, %idle) : (!llvm.ptr, i64, i64) -> ()
  llvm.br ^leave(%idle : i64)
^leave(%waited_for: i64):
  %result = "llvm.load"(%status_at) <{alignment = 4 : i64, ordering = 2 : i64}> : (!llvm.ptr) -> i32
  "llvm.store"(%zero32, %owner_at) <{alignment = 4 : i64, ordering = 5 : i64}> : (i32, !llvm.ptr) -> ()
  %over = llvm.call_intrinsic "llvm.readcyclecounter"() : () -> i64
  %whole = llvm.sub %over, %started : i64
  %is_helped = llvm.icmp "ult" %own_units, %units : i64
  llvm.cond_br %is_helped, ^helped, ^out(%result, %whole, %waited_for : i32, i64, i64)
^helped:
  llvm.call @pyc_threads_expect(%helped_at, %whole) : (!llvm.ptr, i64) -> ()
  llvm.br ^out(%result, %whole, %waited_for : i32, i64, i64)
^out(%answer: i32, %took: i64, %waited: i64):
  %trace_at = llvm.getelementptr %pool[424] : (!llvm.ptr) -> !llvm.ptr, i8
  %trace = llvm.load %trace_at : !llvm.ptr -> !llvm.ptr
  %no_trace = llvm.mlir.zero : !llvm.ptr
  %is_traced = llvm.icmp "ne" %trace, %no_trace : !llvm.ptr
  llvm.cond_br %is_traced, ^record, ^return
^record:
  // Records of function, tiles, cycles, and those of them that the caller waited; the next one's
  // place and the end come first.
  %record_bytes = llvm.mlir.constant(32 : i64) : i64
  %before = llvm.atomicrmw add %trace, %record_bytes monotonic : !llvm.ptr, i64
  %trace_end_at = llvm.getelementptr %trace[8] : (!llvm.ptr) -> !llvm.ptr, i8
  %trace_end = llvm.load %trace_end_at : !llvm.ptr -> i64
  %fits = llvm.icmp "ult" %before, %trace_end : i64
  llvm.cond_br %fits, ^write, ^return
^write:
  %record = llvm.getelementptr %trace[%before] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %tiles_to = llvm.getelementptr %record[8] : (!llvm.ptr) -> !llvm.ptr, i8
  %cycles_to = llvm.getelementptr %record[16] : (!llvm.ptr) -> !llvm.ptr, i8
  %waited_to = llvm.getelementptr %record[24] : (!llvm.ptr) -> !llvm.ptr, i8
  llvm.store %function, %record : !llvm.ptr, !llvm.ptr
  llvm.store %tiles, %tiles_to : i64, !llvm.ptr
  llvm.store %took, %cycles_to : i64, !llvm.ptr
  llvm.store %waited, %waited_to : i64, !llvm.ptr
  llvm.br ^return
^return:
  llvm.return %answer : i32
}

// The loop of a helper: take what is posted, sleep when nothing is; until told to return. A thread
// begins here, with the pool's address | turn << 6 | number from 1 on.
llvm.func internal @pyc_threads_help(%given: !llvm.ptr) -> !llvm.ptr attributes {no_inline} {
  %page = llvm.mlir.constant(-4096 : i64) : i64
  %numbers = llvm.mlir.constant(63 : i64) : i64
  %number_bits = llvm.mlir.constant(6 : i64) : i64
  %all = llvm.ptrtoint %given : !llvm.ptr to i64
  %address = llvm.and %all, %page : i64
  %pool = llvm.inttoptr %address : i64 to !llvm.ptr
  %me = llvm.and %all, %numbers : i64
  %turn0 = llvm.lshr %all, %number_bits : i64
  %turn1 = llvm.and %turn0, %numbers : i64
  %turn = llvm.trunc %turn1 : i64 to i32
  %one32 = llvm.mlir.constant(1 : i32) : i32
  %zero = llvm.mlir.constant(0 : i64) : i64
  %one = llvm.mlir.constant(1 : i64) : i64
  %field = llvm.mlir.constant(12 : i64) : i64
  %mask = llvm.mlir.constant(4095 : i64) : i64
  %line = llvm.mlir.constant(128 : i64) : i64
  %first_line = llvm.mlir.constant(1024 : i64) : i64
  %asleep_at = llvm.getelementptr %pool[260] : (!llvm.ptr) -> !llvm.ptr, i8
  %waited_at = llvm.getelementptr %pool[264] : (!llvm.ptr) -> !llvm.ptr, i8
  %stop_at = llvm.getelementptr %pool[384] : (!llvm.ptr) -> !llvm.ptr, i8
  %spin_at = llvm.getelementptr %pool[392] : (!llvm.ptr) -> !llvm.ptr, i8
  %offset0 = llvm.mul %me, %line : i64
  %offset = llvm.add %offset0, %first_line : i64
  %own_at = llvm.getelementptr %pool[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8
  %units_at = llvm.getelementptr %own_at[8] : (!llvm.ptr) -> !llvm.ptr, i8
  %sleeps_at = llvm.getelementptr %own_at[16] : (!llvm.ptr) -> !llvm.ptr, i8
  %spin = llvm.load %spin_at : !llvm.ptr -> i64
  %thread_at = llvm.getelementptr %own_at[24] : (!llvm.ptr) -> !llvm.ptr, i8
  %policy_at = llvm.getelementptr %pool[440] : (!llvm.ptr) -> !llvm.ptr, i8
  %no_priority = llvm.getelementptr %pool[444] : (!llvm.ptr) -> !llvm.ptr, i8
  %policy32 = llvm.load %policy_at : !llvm.ptr -> i32
  %policy = llvm.zext %policy32 : i32 to i64
  // gettid(); sched_setscheduler(itself, policy, priority), which a sandbox may forbid
  %gettid = llvm.mlir.constant(186 : i64) : i64
  %setscheduler = llvm.mlir.constant(144 : i64) : i64
  %thread = llvm.inline_asm has_side_effects asm_dialect = att "syscall", "={rax},{rax},~{rcx},~{r11},~{memory}" %gettid : (i64) -> i64
  llvm.store %thread, %thread_at : i64, !llvm.ptr
  %set = llvm.inline_asm has_side_effects asm_dialect = att "syscall", "={rax},{rax},{rdi},{rsi},{rdx},~{rcx},~{r11},~{memory}" %setscheduler, %zero, %policy, %no_priority : (i64, i64, i64, !llvm.ptr) -> i64
  llvm.br ^awake(%zero : i64)
^awake(%known: i64):
  %start = llvm.call_intrinsic "llvm.readcyclecounter"() : () -> i64
  llvm.br ^look(%known, %start : i64, i64)
// What job was seen last, and when.
^look(%seen: i64, %busy: i64):
  %word = "llvm.load"(%pool) <{alignment = 8 : i64, ordering = 4 : i64}> : (!llvm.ptr) -> i64
  %is_new = llvm.icmp "ne" %word, %seen : i64
  llvm.cond_br %is_new, ^job, ^idle
^job:
  %above = llvm.lshr %word, %field : i64
  %shares = llvm.and %above, %mask : i64
  %is_mine = llvm.icmp "ult" %me, %shares : i64
  llvm.cond_br %is_mine, ^take, ^again
^take:
  %count = llvm.call @pyc_threads_take(%pool, %word, %me) : (!llvm.ptr, i64, i64) -> i64
  %units = llvm.load %units_at : !llvm.ptr -> i64
  %units1 = llvm.add %units, %count : i64
  llvm.store %units1, %units_at : i64, !llvm.ptr
  llvm.br ^again
^again:
  %then = llvm.call_intrinsic "llvm.readcyclecounter"() : () -> i64
  %stop0 = "llvm.load"(%stop_at) <{alignment = 4 : i64, ordering = 2 : i64}> : (!llvm.ptr) -> i32
  %is_stop0 = llvm.icmp "ne" %stop0, %turn : i32
  llvm.cond_br %is_stop0, ^return, ^look(%word, %then : i64, i64)
^idle:
  llvm.call_intrinsic "llvm.x86.sse2.pause"() : () -> ()
  %now = llvm.call_intrinsic "llvm.readcyclecounter"() : () -> i64
  %nothing = llvm.sub %now, %busy : i64
  %is_long = llvm.icmp "ugt" %nothing, %spin : i64
  llvm.cond_br %is_long, ^sleep, ^look(%seen, %busy : i64, i64)
^sleep:
  %value = "llvm.load"(%waited_at) <{alignment = 4 : i64, ordering = 4 : i64}> : (!llvm.ptr) -> i32
  %counted = llvm.atomicrmw add %asleep_at, %one32 seq_cst : !llvm.ptr, i32
  // Once more, since a job that was posted before the sleeper was counted wakes nobody.
  %last = llvm.atomicrmw add %pool, %zero seq_cst : !llvm.ptr, i64
  %stop = "llvm.load"(%stop_at) <{alignment = 4 : i64, ordering = 4 : i64}> : (!llvm.ptr) -> i32
  %is_stop = llvm.icmp "ne" %stop, %turn : i32
  llvm.cond_br %is_stop, ^return, ^missed
^missed:
  %came = llvm.icmp "ne" %last, %seen : i64
  llvm.cond_br %came, ^awake(%seen : i64), ^wait
^wait:
  %sleeps = llvm.load %sleeps_at : !llvm.ptr -> i64
  %sleeps1 = llvm.add %sleeps, %one : i64
  llvm.store %sleeps1, %sleeps_at : i64, !llvm.ptr
  // futex(at, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, value, forever)
  %futex = llvm.mlir.constant(202 : i64) : i64
  %wait = llvm.mlir.constant(128 : i64) : i64
  %expected = llvm.zext %value : i32 to i64
  %waited = llvm.inline_asm has_side_effects asm_dialect = att "syscall", "={rax},{rax},{rdi},{rsi},{rdx},{r10},~{rcx},~{r11},~{memory}" %futex, %waited_at, %wait, %expected, %zero : (i64, !llvm.ptr, i64, i64, i64) -> i64
  %stop2 = "llvm.load"(%stop_at) <{alignment = 4 : i64, ordering = 4 : i64}> : (!llvm.ptr) -> i32
  %is_stop2 = llvm.icmp "ne" %stop2, %turn : i32
  llvm.cond_br %is_stop2, ^return, ^awake(%seen : i64)
^return:
  %nothing_more = llvm.mlir.zero : !llvm.ptr
  llvm.return %nothing_more : !llvm.ptr
}

// Tell the program of a pool: the first binding has the word, the second gets where helpers begin,
// the cycle counter, and a mark of this code.
llvm.func @pyc_threads_attach_1(%environment: !llvm.ptr, %state: !llvm.ptr, %workgroup: !llvm.ptr) -> i32 {
  %zero32 = llvm.mlir.constant(0 : i32) : i32
  %bindings_at = llvm.getelementptr %state[32] : (!llvm.ptr) -> !llvm.ptr, i8
  %bindings = llvm.load %bindings_at : !llvm.ptr -> !llvm.ptr
  %second_at = llvm.getelementptr %bindings[8] : (!llvm.ptr) -> !llvm.ptr, i8
  %first = llvm.load %bindings : !llvm.ptr -> !llvm.ptr
  %second = llvm.load %second_at : !llvm.ptr -> !llvm.ptr
  %word = llvm.load %first : !llvm.ptr -> i64
  %program = llvm.mlir.addressof @pyc_threads : !llvm.ptr
  %mark_at = llvm.getelementptr %second[16] : (!llvm.ptr) -> !llvm.ptr, i8
  %mark = llvm.mlir.constant(1346978643 : i64) : i64
  llvm.store %mark, %mark_at : i64, !llvm.ptr
  "llvm.store"(%word, %program) <{alignment = 8 : i64, ordering = 5 : i64}> : (i64, !llvm.ptr) -> ()
  %help = llvm.mlir.addressof @pyc_threads_help : !llvm.ptr
  %begin = llvm.ptrtoint %help : !llvm.ptr to i64
  llvm.store %begin, %second : i64, !llvm.ptr
  %clock_at = llvm.getelementptr %second[8] : (!llvm.ptr) -> !llvm.ptr, i8
  %clock = llvm.call_intrinsic "llvm.readcyclecounter"() : () -> i64
  llvm.store %clock, %clock_at : i64, !llvm.ptr
  llvm.return %zero32 : i32
}

// What a dispatch becomes: the first workgroup runs all, the others return.
llvm.func @pyc_threads_dispatch(%environment: !llvm.ptr {llvm.align = 16 : i64, llvm.nonnull, llvm.noundef}, %state: !llvm.ptr {llvm.align = 16 : i64, llvm.nonnull, llvm.noundef}, %workgroup: !llvm.ptr {llvm.align = 16 : i64, llvm.nonnull, llvm.noundef}) -> i32 {
  %zero = llvm.mlir.constant(0 : i64) : i64
  %zero32 = llvm.mlir.constant(0 : i32) : i32
  %program_at = llvm.mlir.addressof @pyc_threads : !llvm.ptr
  %program = "llvm.load"(%program_at) <{alignment = 8 : i64, ordering = 2 : i64}> : (!llvm.ptr) -> i64
  %function = llvm.mlir.addressof @pyc_threads_any : !llvm.ptr
  %times = llvm.mlir.addressof @pyc_threads_times : !llvm.ptr
  %is_alone = llvm.icmp "eq" %program, %zero : i64
  llvm.cond_br %is_alone, ^alone, ^pool
^alone:
  %own = llvm.call @pyc_threads_any(%environment, %state, %workgroup) : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
  llvm.return %own : i32
^pool:
  %xy = llvm.load %workgroup : !llvm.ptr -> i64
  %z_at = llvm.getelementptr %workgroup[8] : (!llvm.ptr) -> !llvm.ptr, i8
  %z16 = llvm.load %z_at : !llvm.ptr -> i16
  %z = llvm.zext %z16 : i16 to i64
  %place = llvm.or %xy, %z : i64
  %is_first = llvm.icmp "eq" %place, %zero : i64
  llvm.cond_br %is_first, ^all, ^nothing
^all:
  %status = llvm.call @pyc_threads_fork(%function, %environment, %state, %workgroup, %program, %times) : (!llvm.ptr, !llvm.ptr, !llvm.ptr, !llvm.ptr, i64, !llvm.ptr) -> i32
  llvm.return %status : i32
^nothing:
  llvm.return %zero32 : i32
}

// What was measured of it.
llvm.mlir.global internal @pyc_threads_times() {alignment = 32 : i64} : !llvm.array<4 x i64> {
  %zero = llvm.mlir.zero : !llvm.array<4 x i64>
  llvm.return %zero : !llvm.array<4 x i64>
}

// The tile that `pyc_threads_dispatch` stands for.
llvm.func @pyc_threads_any(!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
