package openai

import (
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/tokenizer"
	"github.com/tinsmith/tinsmith/plugins"
)

// token is one generated (or prompt) token with its scores.
type token struct {
	id      int32
	logprob float32
	top     []topToken
	offset  int // of its text, in bytes of the sequence's text
}

type topToken struct {
	id      int32
	logprob float32
}

// piece is text that is certain, with the tokens that begin in it.
type piece struct {
	text   string
	tokens []token
}

// assembler turns the tokens of one sequence into text: whole characters only, nothing that may still become a stop string, and nothing from a stop string on.
type assembler struct {
	stream      *tokenizer.Stream
	stops       []string
	includeStop bool
	ends        map[int32]bool

	held     string  // text that is not certain yet
	tokens   []token // tokens that begin in held, or that have given no text yet
	released int     // bytes given out
	stopped  bool    // a stop string was found
}

func (g *generation) assembler(t *tokenizer.Tokenizer) *assembler {
	return &assembler{stream: t.NewStream(g.skipSpecial), stops: g.stopStrings, includeStop: g.includeStop, ends: g.ends}
}

// push takes the next tokens and gives what is certain now.
func (a *assembler) push(s *plugins.SampledTokens) piece {
	for i, id := range s.Tokens {
		if a.stopped || a.ends[id] {
			// An end token is no text; what comes after a stop string is not wanted.
			continue
		}
		a.tokens = append(a.tokens, token{id: id, logprob: s.Logprobs[i], top: topRow(s.Top, i), offset: a.released + len(a.held)})
		a.held += a.stream.Push(id)
		a.cutAtStop()
	}
	return a.release(a.certain())
}

// finish gives the rest.
func (a *assembler) finish() piece {
	if !a.stopped {
		a.held += a.stream.Flush()
		a.cutAtStop()
	}
	return a.release(len(a.held))
}

// cutAtStop looks for the first stop string in what is held and drops the text from there on.
func (a *assembler) cutAtStop() {
	first, end := -1, 0
	for _, s := range a.stops {
		if i := strings.Index(a.held, s); i >= 0 && (first < 0 || i < first) {
			first, end = i, i
			if a.includeStop {
				end = i + len(s)
			}
		}
	}
	if first < 0 {
		return
	}
	a.stopped = true
	a.held = a.held[:end]
	kept := a.tokens[:0]
	for _, t := range a.tokens {
		if t.offset < a.released+end {
			kept = append(kept, t)
		}
	}
	a.tokens = kept
}

// certain counts the held bytes that cannot be part of a stop string any more.
func (a *assembler) certain() int {
	if a.stopped {
		return len(a.held)
	}
	for from := max(0, len(a.held)-a.longest()+1); from < len(a.held); from++ {
		for _, s := range a.stops {
			if strings.HasPrefix(s, a.held[from:]) {
				return from
			}
		}
	}
	return len(a.held)
}

func (a *assembler) longest() int {
	n := 1
	for _, s := range a.stops {
		n = max(n, len(s))
	}
	return n
}

// release gives out n bytes of the held text. Tokens go with the text they begin in; those at the very end wait for theirs.
func (a *assembler) release(n int) piece {
	p := piece{text: a.held[:n]}
	whole := n == len(a.held)
	a.held = a.held[n:]
	a.released += n
	count := 0
	for count < len(a.tokens) && (a.tokens[count].offset < a.released || whole && n > 0) {
		count++
	}
	p.tokens = append(p.tokens, a.tokens[:count]...)
	a.tokens = append(a.tokens[:0], a.tokens[count:]...)
	return p
}

// rest gives tokens that have produced no text at all, such as skipped special ones.
func (a *assembler) rest() []token {
	t := a.tokens
	a.tokens = nil
	return t
}

func topRow(top plugins.TopLogprobs, row int) []topToken {
	out := make([]topToken, 0, top.K)
	for j := range top.K {
		out = append(out, topToken{top.IDs[row*top.K+j], top.Logprobs[row*top.K+j]})
	}
	return out
}
