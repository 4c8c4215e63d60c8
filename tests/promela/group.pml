/* group.pml: a model of the rendezvous and the abort (src/comm/group.c), of the waiting below it (src/base/wait.c) and of the scratch
 * protocol above it (src/comm/host.c), for spin. run.sh checks it; change it together with those files.
 *
 * P ranks make USES collectives. Up to FAILS times, anywhere, something goes wrong: a rank leaves without a word, a rank aborts the
 * group, a rank announces another descriptor, a deadline passes although nobody is lost (a slow rank). Checked:
 *   - no deadlock: every rank ends. The deadline is there only when a rank was lost or as one of the FAILS, so a wake that an
 *     abort or a release forgets is a deadlock here; nor is the cap on one futex wait modelled, which would hide a lost wake for a second;
 *   - the first reason of an abort stays;
 *   - without a failure all ranks end well; if descriptors differed, or a rank was lost before a meeting, no rank ends well;
 *   - whoever reads scratch of use u reads what its owner wrote for use u (value u; 0 while it is being written).
 *
 * Streams: in the code a read may happen at any time from the call to the next stream_sync. In the model it happens right before
 * that sync; as the rank does nothing visible in between but barriers, and reads may come before those too (drain_maybe), that covers all.
 *
 * Broken on purpose, each must be rejected: ONE_BUFFER, BARRIER_COUNTS (buffers alternate by sequence number), NO_SYNC (reads still
 * under way when the rank meets again), NO_WAKE (abort forgets to bump), LATE_SEEN (`turn` read after the arrival), NO_SLEEPER_COUNT
 * (wait.c counts the sleeper after the last look), NO_COMPARE, ONE_MEETING (group_exchange).
 */
#ifndef P
#define P 2
#endif
#ifndef USES
#define USES 3
#endif
#ifndef FAILS
#define FAILS 1
#endif
#ifdef ONE_BUFFER
#define BUFFERS 1
#else
#define BUFFERS 2
#endif

#define GOOD 0
#define BAD 1   /* ended with the group's error */
#define GONE 2  /* fault kind exit: left without a word */

/* struct group */
byte turn = 0;
byte sleepers = 0;
byte arrived = 0;
bool aborted = false;
byte desc[P];
bool asleep[P]; /* in the kernel, on turn's futex */

/* struct place of each rank */
byte scratch[P * 2];
byte slice[P];
byte shared[P];

/* What the checks look at. */
byte budget = FAILS;
byte gone = 0;
byte ended = 0;
byte end_state[P];
byte reason = 0; /* 1 + rank */
bool differed = false;
bool gone_before = false; /* a rank was lost before a meeting that the others need */

/* wait.c: wait_bump */
inline bump()
{
	turn++;
	if
	:: sleepers > 0 -> d_step { q = 0; do :: q < P -> asleep[q] = false; q++ :: else -> q = 0; break od }
	:: else -> skip
	fi
}

/* group.c: group_abort; the lock makes the first step one step */
inline abort_group()
{
	atomic {
		first = !aborted;
		if
		:: first -> assert(reason == 0); reason = r + 1; aborted = true
		:: else -> assert(reason != 0)
		fi
	}
#ifndef NO_WAKE
	if
	:: first -> first = false; bump()
	:: else -> skip
	fi
#endif
}

/* The deadline passes: because a rank is lost, or as one of the failures. */
inline expire()
{
	atomic {
		if
		:: gone > 0 -> skip
		:: gone == 0 && budget > 0 -> budget--
		fi;
		expired = true
	}
}

/* wait.c: wait_change (the spin either sees the change or gives up), then sleep_on */
inline wait_for_turn()
{
	expired = false;
	if
	:: turn != seen -> skip
	:: true ->
#ifndef NO_SLEEPER_COUNT
		sleepers++;
#endif
		do
		:: turn != seen -> break
		:: turn == seen && expired -> break
		:: turn == seen && !expired ->
			if
			:: expire()
			:: true ->
				if
				:: d_step { turn == seen -> asleep[r] = true } /* FUTEX_WAIT compares and sleeps in one step */
#ifdef NO_SLEEPER_COUNT
					; sleepers++
#endif
					if
					:: !asleep[r] -> skip
					:: expire(); asleep[r] = false
					fi
#ifdef NO_SLEEPER_COUNT
					; sleepers--
#endif
				:: turn != seen -> skip
				fi
			fi
		od;
#ifndef NO_SLEEPER_COUNT
		sleepers--
#endif
	fi;
	if
	:: expired && turn == seen -> abort_group() /* group.c: await_release; report_timeout */
	:: else -> skip
	fi;
	expired = false
}

/* group.c: meet. `d`: the descriptor, or by a failure another one */
inline meet(d)
{
	if
	:: aborted -> st = BAD
	:: else ->
		atomic {
			if
			:: desc[r] = d
			:: budget > 0 -> budget--; desc[r] = 100 + r; differed = true /* not equal to another wrong one */
			fi;
			seen = turn /* desc is not visible before the arrival: one step is enough */
		}
		atomic { arrived++; last = (arrived == P) }
#ifdef LATE_SEEN
		seen = turn;
#endif
		if
		:: last -> /* group.c: release_all; nobody writes a slot now */
			last = false;
			d_step { q = 1; do :: q < P && desc[q] == desc[0] -> q++ :: else -> break od }
#ifdef NO_COMPARE
			q = P;
#endif
			if
			:: q < P -> q = 0; abort_group(); st = BAD
			:: else -> q = 0; arrived = 0; bump()
			fi
		:: else -> /* group.c: await_release */
			if
			:: aborted -> skip
			:: else -> wait_for_turn()
			fi;
			if
			:: aborted -> st = BAD /* group_error */
			:: else -> skip
			fi
		fi;
		seen = 0
	fi
}

/* base/fault.c through group.c: visit_fault; also stands for a device that fails (host.c: settle) */
inline fault_point(before)
{
	if
	:: atomic { budget > 0 -> budget--; gone++; st = GONE; gone_before = gone_before || before || u < USES }
	:: atomic { budget > 0 -> budget--; st = BAD }; abort_group()
	:: true -> skip
	fi
}

/* group.c: group_meet */
inline group_meet(d)
{
	fault_point(true);
	if :: st == GOOD -> meet(d) :: else -> skip fi;
	if :: st == GOOD -> fault_point(false) :: else -> skip fi
}

#ifdef BARRIER_COUNTS
#define BUFFER(owner) scratch[(owner) * 2 + sequence % BUFFERS]
#else
#define BUFFER(owner) scratch[(owner) * 2 + u % BUFFERS]
#endif

inline write_scratch()
{
	BUFFER(r) = 0;
	BUFFER(r) = u
}

/* Reads that are still on the stream: `due` = use whose scratch (slices in two shots) is to be read. */
inline drain()
{
	if
	:: due > 0 ->
		q = 0;
		do
		:: q < P ->
#ifdef TWO_SHOTS
			assert(slice[q] == due);
#else
			assert(scratch[q * 2 + due_buffer] == due);
#endif
			q++
		:: else -> break
		od;
		q = 0; due = 0; due_buffer = 0
	:: else -> skip
	fi
}

inline drain_maybe()
{
	if
	:: drain()
	:: true -> skip
	fi
}

/* host.c: reduce, after partial and linear; with TWO_SHOTS: two_shots, else one_shot */
inline all_reduce()
{
#ifndef NO_SYNC
	drain();
#endif
	write_scratch(); /* in stream order after the reads; complete at stream_sync */
	group_meet(sequence);
#ifdef NO_SYNC
	if :: st == GOOD -> drain() :: else -> skip fi;
#endif
	if
	:: st == GOOD ->
#ifdef TWO_SHOTS
		do /* first shot: this rank's rows of all scratches into its slice, then stream_sync */
		:: q < P -> assert(BUFFER(q) == u); q++
		:: else -> q = 0; break
		od;
		slice[r] = 0;
		slice[r] = u;
		group_meet(sequence);
		if :: st == GOOD -> due = u :: else -> skip fi
#else
		due = u;
#ifdef BARRIER_COUNTS
		due_buffer = sequence % BUFFERS
#else
		due_buffer = u % BUFFERS
#endif
#endif
	:: else -> skip
	fi;
	sequence++
}

/* group.c: group_exchange */
inline exchange()
{
	shared[r] = 0;
	shared[r] = u;
	group_meet(sequence);
	if
	:: st == GOOD ->
		do
		:: q < P -> assert(shared[q] == u); q++
		:: else -> q = 0; break
		od;
#ifndef ONE_MEETING
		group_meet(sequence);
#endif
	:: else -> skip
	fi;
	sequence++
}

/* A rank's worker. An error ends it: it makes no further call and writes nothing more. */
proctype rank(byte r)
{
	byte seen = 0, q = 0, u = 1, sequence = 1, due = 0, due_buffer = 0, st = GOOD;
	bool first = false, last = false, expired = false;
	do
	:: u <= USES && st == GOOD ->
#ifdef EXCHANGE
		exchange();
#else
		all_reduce();
#ifdef BARRIERS
		if
		:: st == GOOD && u % 2 == 1 -> drain_maybe(); group_meet(sequence); sequence++ /* host.c: host_barrier */
		:: else -> skip
		fi;
#endif
#endif
		u++
	:: else -> break
	od;
	/* Reads that an earlier success put on the stream go on after the failure of a peer, or this rank's own. */
	drain();
	atomic { end_state[r] = st; ended++ }
}

init {
	byte i = 0, good = 0;
	atomic { do :: i < P -> run rank(i); i++ :: else -> break od }
	ended == P;
	d_step {
		i = 0;
		do
		:: i < P && end_state[i] == GOOD -> good++; i++
		:: i < P && end_state[i] != GOOD -> i++
		:: else -> break
		od
	}
	assert(budget < FAILS || good == P);
	assert(!differed || good == 0);
	assert(!gone_before || good == 0);
	assert(sleepers == 0);
	assert(good == P || aborted || gone > 0);
	/* Everybody left ended because it was told: who is not good and not gone saw an abort with a reason. */
	assert(good + gone == P || (aborted && reason != 0))
}
