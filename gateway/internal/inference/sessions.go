package inference

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Bounds of what is remembered of conversations.
const (
	// MaxSessionName is how many bytes the name of a session may have.
	MaxSessionName = 128

	maxSessionTurns    = 4096     // of one session
	maxSessionBytes    = 64 << 20 // of one key
	sessionKept        = time.Hour
	turnBytes          = 512 // of a turn beside its tokens
	tokenBytes         = 4
	sampledTokenBytes  = 12 // with two log-probabilities
	maxSessionBranches = 64 // that a conversation can go on from
)

// Turn is one answer of a session with what was read before it.
type Turn struct {
	// parent is the turn whose tokens this one's prompt begins with, nil if there is none.
	parent *Turn
	// Read are the prompt's tokens behind the parent's, Sampled the answer's.
	Read    []int32
	Sampled Sampled
	// ID is what the sampled sequence is recorded under, "" for none; Version the adapter's that has answered.
	ID      string
	Version int64

	rendered printed // the conversation without the beginning of the answer, as the template prints it
	thoughts bool    // the answer has some
	ended    int32   // the end token that the answer ends with, -1 for another end
	number   int
	length   int // tokens of the prompt and the answer
}

// tokens are those of the prompt and the answer.
func (t *Turn) tokens() []int32 {
	out := make([]int32, t.length)
	at := len(out)
	for ; t != nil; t = t.parent {
		at -= len(t.Sampled.Tokens)
		copy(out[at:], t.Sampled.Tokens)
		at -= len(t.Read)
		copy(out[at:], t.Read)
	}
	return out
}

// spans are what was read and sampled, in order.
func (t *Turn) spans() []Span {
	var out []Span
	if t.parent != nil {
		out = t.parent.spans()
	}
	return append(out, Span{Tokens: t.Read}, Span{Tokens: t.Sampled.Tokens, Logprobs: t.Sampled.Logprobs})
}

func (t *Turn) bytes() int {
	return turnBytes + tokenBytes*len(t.Read) + sampledTokenBytes*len(t.Sampled.Tokens)
}

// session is what is remembered under one name of one key.
type session struct {
	turns    []*Turn
	branches map[branch]*Turn
	order    []branch // oldest first
	bytes    int
	used     time.Time
}

// branch is a conversation up to and with an answer: a hash of everything that the template prints it from.
type branch [32]byte

// Sessions remember conversations, so that their next turns are read with the very tokens that were sampled. It may be used concurrently.
type Sessions struct {
	now func() time.Time

	mu     sync.Mutex
	owners map[string]*owner
	swept  time.Time
}

type owner struct {
	sessions map[string]*session
	bytes    int
}

// NewSessions makes an empty memory.
func NewSessions() *Sessions { return &Sessions{now: time.Now, owners: map[string]*owner{}} }

// sweepEvery is how often all sessions are looked through: there may be a hundred thousand of a key, and everybody waits meanwhile.
const sweepEvery = time.Minute

// old is the time before which a session must have been used to be forgotten.
func (s *Sessions) old() time.Time { return s.now().Add(-sessionKept) }

// session is one that is remembered, nil if there is none. mu is held.
func (s *Sessions) session(key, id string) *session {
	o := s.owners[key]
	if o == nil {
		return nil
	}
	one := o.sessions[id]
	if one != nil && one.used.Before(s.old()) {
		o.forget(id)
		return nil
	}
	return one
}

// forget removes a session.
func (o *owner) forget(id string) {
	o.bytes -= o.sessions[id].bytes
	delete(o.sessions, id)
}

// sweep forgets what nobody has used for long. mu is held.
func (s *Sessions) sweep() {
	if s.now().Sub(s.swept) < sweepEvery {
		return
	}
	s.swept = s.now()
	old := s.old()
	for name, o := range s.owners {
		for id, one := range o.sessions {
			if one.used.Before(old) {
				o.forget(id)
			}
		}
		if len(o.sessions) == 0 {
			delete(s.owners, name)
		}
	}
}

// find gives the turn of the first of some branches that is remembered.
func (s *Sessions) find(key, id string, branches []branch) (*Turn, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	one := s.session(key, id)
	if one == nil {
		return nil, 0
	}
	one.used = s.now()
	for i, b := range branches {
		if t := one.branches[b]; t != nil {
			return t, i
		}
	}
	return nil, 0
}

// add remembers a turn, and the branch that goes on from it unless it is nil. Of sessions of a key that have more bytes than they may those go that were unused for longest.
func (s *Sessions) add(key, id string, t *Turn, from *branch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	o := s.owners[key]
	if o == nil {
		o = &owner{sessions: map[string]*session{}}
		s.owners[key] = o
	}
	one := s.session(key, id)
	if one == nil {
		one = &session{branches: map[branch]*Turn{}}
		o.sessions[id] = one
	}
	one.used = s.now()
	if len(one.turns) >= maxSessionTurns {
		o.bytes -= one.turns[0].bytes()
		one.bytes -= one.turns[0].bytes()
		one.turns = one.turns[1:]
	}
	t.number = 1
	if n := len(one.turns); n > 0 {
		t.number = one.turns[n-1].number + 1
	}
	one.turns = append(one.turns, t)
	one.bytes += t.bytes()
	o.bytes += t.bytes()
	if from != nil {
		if one.branches[*from] == nil {
			one.order = append(one.order, *from)
		}
		one.branches[*from] = t
		if len(one.order) > maxSessionBranches {
			delete(one.branches, one.order[0])
			one.order = one.order[1:]
		}
	}
	if o.bytes > maxSessionBytes {
		o.makeRoom()
	}
}

// makeRoom forgets the sessions that were unused for longest, until those that stay take a little less than they may: so they need not be put in order for every turn.
func (o *owner) makeRoom() {
	names := slices.SortedFunc(maps.Keys(o.sessions), func(a, b string) int { return o.sessions[a].used.Compare(o.sessions[b].used) })
	for _, name := range names {
		if o.bytes <= maxSessionBytes-maxSessionBytes/16 || len(o.sessions) == 1 && o.bytes <= maxSessionBytes {
			return
		}
		o.forget(name)
	}
}

// Forget removes a session and tells whether there was one.
func (s *Sessions) Forget(key, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session(key, id) == nil {
		return false
	}
	s.owners[key].forget(id)
	return true
}

// SessionDatum is training data of one turn, or of several that follow each other.
type SessionDatum struct {
	Datum *Datum `json:"datum"`
	// Turns are the numbers of the turns, counted from 1 in the order of their ends, and WeightVersions the adapter's versions that have answered.
	Turns          []int   `json:"turns"`
	WeightVersions []int64 `json:"weight_versions"`
	// SequenceIDs are what the turns' sequences are recorded under, for provenance; "" for one that is not.
	SequenceIDs []string `json:"sequence_ids"`
}

// Datums gives the turns of a session as training data, oldest first. merged makes one Datum of turns of which each begins with the tokens of the one before. ok is false if there is
// no such session. take is asked before memory is taken, in bytes: every Datum holds all that was read before it, so that together they may be a thousand times what is remembered.
func (s *Sessions) Datums(key, id, loss string, merged bool, take func(bytes int) error) (out []SessionDatum, ok bool, err error) {
	s.mu.Lock()
	remembered := s.session(key, id)
	if remembered == nil {
		s.mu.Unlock()
		return nil, false, nil
	}
	remembered.used = s.now()
	turns := append([]*Turn(nil), remembered.turns...)
	s.mu.Unlock()
	followed := map[*Turn]bool{}
	for _, t := range turns {
		followed[t.parent] = true
	}
	for _, t := range turns {
		if merged && followed[t] {
			continue
		}
		if err := take(datumTokenBytes * t.length); err != nil {
			return nil, true, err
		}
		one := SessionDatum{Turns: []int{t.number}, WeightVersions: []int64{t.Version}, SequenceIDs: []string{t.ID}}
		spans := []Span{{Tokens: t.tokens()[:t.length-len(t.Sampled.Tokens)]}, {Tokens: t.Sampled.Tokens, Logprobs: t.Sampled.Logprobs}}
		if merged {
			one.Turns, one.WeightVersions, one.SequenceIDs, spans = nil, nil, nil, t.spans()
			for at := t; at != nil; at = at.parent {
				one.Turns = append([]int{at.number}, one.Turns...)
				one.WeightVersions = append([]int64{at.Version}, one.WeightVersions...)
				one.SequenceIDs = append([]string{at.ID}, one.SequenceIDs...)
			}
		}
		if one.Datum, err = NewDatum(loss, spans); err != nil {
			return nil, true, err
		}
		out = append(out, one)
	}
	return out, true, nil
}
