/* p2p.pml: a model of the collectives over peer memory (src/comm/gpu/p2p.h, p2p_packets.cu, p2p_bulk.cu), for spin. run.sh checks it; change it
 * together with those files.
 *
 * P ranks launch USES collectives each. Kernels of one rank run one after the other, each made of BLOCKS blocks that run at the same time; before
 * each kernel the rank's linear writes its partial. Memory of a rank that peers write: announcements, packets, flags, in halves by use; packets
 * hold a flag (the use) and data (the use of the partial they were read from). A partial is two words, so that a linear that overwrites it while a
 * peer reads is seen. Up to FAILS times a rank stops launching (its host failed) or announces another descriptor; then an abort may come at
 * any moment. Checked:
 *   - no deadlock: every kernel ends;
 *   - a block uses data of its own use and no other, whole;
 *   - without a failure all ranks end well; where descriptors differed or a rank did not launch, nobody's last kernel ends well.
 *
 * PULL: peers read partials (announcement first, then reads, then flags that say "read"). TWO_SHOTS: peers read parts of partials, put the sum into
 * `gathered`, flags, then read those. Else packets.
 * Memory is sequentially consistent here: that stores and loads are ordered as modelled is what the fences and the packets are for.
 *
 * Broken on purpose, each must be rejected: ONE_HALF (no halves), NO_AWAIT (kernels of packets end without having seen announcements), NO_DONE
 * (pull ends without "read" flags), EARLY_READ (pull does not wait for announcements), NO_COMPARE, NO_ABORT (spins do not look), STATIC_USE (the
 * use is the launch's own constant, as a replayed graph would have it).
 */
#ifndef P
#define P 2
#endif
#ifndef USES
#define USES 3
#endif
#ifndef BLOCKS
#define BLOCKS 1
#endif
#ifndef FAILS
#define FAILS 0
#endif
#ifdef ONE_HALF
#define HALF(u) 0
#else
#define HALF(u) ((u) % 2)
#endif

#define AT(to, half, from) ((((to) * 2) + (half)) * P + (from))
#define AT_BLOCK(to, half, from, b) (AT(to, half, from) * BLOCKS + (b))

/* Announcements: the use, and whether it is the descriptor that all should have. */
byte announced[P * 2 * P];
bool differs[P * 2 * P];
/* Packets, by block: flag and data. */
byte flag[P * 2 * P * BLOCKS];
byte data[P * 2 * P * BLOCKS];
/* Flags of phases, by block. */
byte phase[P * 2 * P * BLOCKS];
/* Partials: two words, and gathered sums, by block. */
byte low[P * BLOCKS];
byte high[P * BLOCKS];
byte gathered[P * BLOCKS];

byte running[P]; /* blocks of the rank's kernel that have not ended */
byte use_of[P];  /* of the kernel that runs */
byte tickets[P]; /* launches so far, in device memory */
bool stop[P];
bool wrong_call[P]; /* this kernel's descriptor is another one */
bool abort = false, failed = false;
byte budget = FAILS;
byte ended = 0, good = 0;

/* A spin: until the condition, or this rank stops. The look at abort word, deadline and descriptors is p2p_look_around. */
#ifdef NO_ABORT
#define AWAIT(condition) (condition)
#else
#define AWAIT(condition) if :: (condition) :: stop[r] fi
#endif

/* Stores to several peers are one step: each peer sees only its own. */
inline announce()
{
	d_step {
		q = 0;
		do
		:: q < P && q != r -> announced[AT(q, HALF(u), r)] = u; differs[AT(q, HALF(u), r)] = wrong_call[r]; q++
		:: q < P && q == r -> q++
		:: q == P -> break
		od;
		q = 0
	}
}

inline await_announced()
{
	q = 0;
	do
	:: q < P && q != r ->
		AWAIT(announced[AT(r, HALF(u), q)] == u);
#ifndef NO_COMPARE
		if
		:: announced[AT(r, HALF(u), q)] == u && differs[AT(r, HALF(u), q)] != wrong_call[r] -> stop[r] = true
		:: else -> skip
		fi;
#endif
		q++
	:: q < P && q == r -> q++
	:: q == P -> break
	od;
	q = 0
}

inline end_phase()
{
	d_step {
		q = 0;
		do
		:: q < P && q != r -> phase[AT_BLOCK(q, HALF(u), r, b)] = u; q++
		:: q < P && q == r -> q++
		:: q == P -> break
		od;
		q = 0
	}
	do
	:: q < P && q != r -> AWAIT(phase[AT_BLOCK(r, HALF(u), q, b)] == u); q++
	:: q < P && q == r -> q++
	:: q == P -> break
	od;
	q = 0
}

/* One word after the other, so that a write in between shows. */
inline read_partials()
{
	q = 0;
	do
	:: q < P && !stop[r] ->
		seen = low[q * BLOCKS + b];
		assert(stop[r] || failed || (seen == u && high[q * BLOCKS + b] == u));
		seen = 0;
		q++
	:: q == P || stop[r] -> break
	od;
	q = 0
}

proctype block(byte r; byte b)
{
	byte q = 0, seen = 0, u = 0;
	u = use_of[r];
#if defined(PULL) || defined(TWO_SHOTS)
	if :: b == 0 -> announce() :: else -> skip fi;
#ifndef EARLY_READ
	await_announced();
#endif
	read_partials();
#ifdef TWO_SHOTS
	if
	:: !stop[r] ->
		gathered[r * BLOCKS + b] = 0;
		gathered[r * BLOCKS + b] = u;
		end_phase();
		do
		:: q < P && !stop[r] -> assert(failed || gathered[q * BLOCKS + b] == u); q++
		:: q == P || stop[r] -> q = 0; break
		od
	:: else -> skip
	fi;
#else
#ifndef NO_DONE
	if :: !stop[r] -> end_phase() :: else -> skip fi;
#endif
#endif
#else
	if :: b == 0 -> announce() :: else -> skip fi;
	d_step { /* push: a packet is one store */
		do
		:: q < P && q != r -> flag[AT_BLOCK(q, HALF(u), r, b)] = u; data[AT_BLOCK(q, HALF(u), r, b)] = low[r * BLOCKS + b]; q++
		:: q < P && q == r -> q++
		:: q == P -> break
		od;
		q = 0
	}
#ifndef NO_AWAIT
	if :: b == 0 -> await_announced() :: else -> skip fi;
#endif
	do
	:: q < P && q != r ->
		AWAIT(flag[AT_BLOCK(r, HALF(u), q, b)] == u);
		assert(stop[r] || data[AT_BLOCK(r, HALF(u), q, b)] == u);
		q++
	:: q < P && q == r -> q++
	:: q == P -> q = 0; break
	od;
#endif
	running[r]--
}

/* The stream of one rank: linear, kernel, linear, ... */
proctype stream(byte r)
{
	byte launched = 0, i = 0;
	do
	:: launched < USES && !stop[r] ->
		if
		:: atomic { budget > 0 -> budget--; failed = true; break } /* the host launches nothing more */
		:: atomic { budget > 0 -> budget--; failed = true; wrong_call[r] = true }
		:: true -> skip
		fi;
		i = 0;
		d_step { do :: i < BLOCKS -> low[r * BLOCKS + i] = launched + 1; i++ :: else -> break od; i = 0 }
		d_step { do :: i < BLOCKS -> high[r * BLOCKS + i] = launched + 1; i++ :: else -> break od; i = 0 }
		atomic {
			tickets[r]++;
#ifdef STATIC_USE
			use_of[r] = 1 + launched % 2; /* a graph of two, replayed */
#else
			use_of[r] = tickets[r];
#endif
			running[r] = BLOCKS;
			do :: i < BLOCKS -> run block(r, i); i++ :: else -> i = 0; break od
		}
		running[r] == 0;
		wrong_call[r] = false;
		launched++
	:: else -> break
	od;
	atomic { ended++; if :: launched == USES && !stop[r] -> good++ :: else -> skip fi }
}

/* The group's abort: some time after something went wrong it reaches every rank's word, and each rank's kernels see it at some time. */
active proctype aborter()
{
	if
	:: failed -> abort = true
	:: ended == P -> skip
	fi;
	if
	:: abort -> byte r = 0; do :: r < P -> stop[r] = true; r++ :: else -> break od
	:: else -> skip
	fi
}

init {
	byte i = 0;
	atomic { do :: i < P -> run stream(i); i++ :: else -> break od }
	ended == P;
	assert(failed || good == P);
	assert(!failed || good == 0)
}
