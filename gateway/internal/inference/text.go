package inference

import (
	"strings"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/tokenizer"
	"github.com/tinsmith/tinsmith/plugins"
)

// Token is one generated (or prompt) token with its scores.
type Token struct {
	ID      int32
	Logprob float32
	Top     []Alternative
	Left    float32 // logarithm of the probability of all that a form allowed, 0 where it allowed everything
	Offset  int     // of its text: characters (code points) of the sequence's text before it
	at      int     // the same in bytes of the text with special tokens
}

// Alternative is one of the likeliest tokens at a place.
type Alternative struct {
	ID      int32
	Logprob float32
}

// piece is text that is certain, with the tokens that begin in it.
type piece struct {
	text   string // without special tokens, if those are left out
	runs   []run  // the same with all of them
	tokens []Token
}

// run is text that comes from special tokens, or from others.
type run struct {
	text    string
	special bool
}

// assembler turns the tokens of one sequence into text: whole characters only, nothing that may still become a stop string, and nothing from a stop string on.
// Stop strings are looked for in the text with special tokens, as package runs does when it ends the sequence, so that "<|im_end|>" can be one; special tokens are
// left out when text is given out.
type assembler struct {
	tokenizer   *tokenizer.Tokenizer
	stream      *tokenizer.Stream
	skipSpecial bool
	stops       []string
	longest     int // bytes of the longest stop string
	includeStop bool
	ends        map[int32]bool
	keepEnds    bool // end tokens are listed among the tokens, though they are no text
	keepAll     bool // tokens behind a stop string's beginning are listed too

	held     string  // text, special tokens included, that is not certain yet
	hidden   []span  // the special tokens in held, ascending
	tokens   []Token // tokens that begin in held, or that have given no text yet
	released int     // bytes that have left held
	chars    int     // characters given out
	stopped  bool    // a stop string was found
	stop     any     // what ended the sequence: a stop string, or the id of an end token; nil if nothing has
}

// span is a range of bytes.
type span struct{ from, to int }

// primeTokens are enough of a prompt's end to tell how a text goes on after it: the bytes of a character, and that a text has begun.
const primeTokens = 8

// newAssembler makes an assembler for one sequence of a generation. Its text goes on after the prompt with afterPrompt, else it is a text of its own: decoders of
// the SentencePiece kind drop the space at a text's beginning.
func (g *Generation) newAssembler(t *tokenizer.Tokenizer) *assembler {
	a := &assembler{
		tokenizer: t, stream: t.NewStream(false), skipSpecial: g.skipSpecial, stops: g.Stops.Strings, longest: 1, includeStop: g.includeStop, ends: g.ends, keepEnds: g.KeepEnds || g.KeepAll, keepAll: g.KeepAll,
	}
	for _, s := range a.stops {
		a.longest = max(a.longest, len(s))
	}
	if g.AfterPrompt {
		for _, id := range g.Request.Prompt[max(0, len(g.Request.Prompt)-primeTokens):] {
			a.stream.Push(id)
		}
	}
	return a
}

// push takes the next tokens and gives what is certain now.
func (a *assembler) push(s *plugins.SampledTokens) piece {
	for i, id := range s.Tokens {
		if a.stopped {
			break // what comes after a stop string is not wanted
		}
		t := Token{ID: id, Logprob: s.Logprobs[i], Top: TopRow(s.Top, i), Offset: a.chars + a.visibleChars(), at: a.released + len(a.held)}
		if i < len(s.ConstraintLogprobs) {
			t.Left = s.ConstraintLogprobs[i]
		}
		if a.ends[id] {
			a.stop = id
		}
		if a.ends[id] && !a.includeStop {
			if a.keepEnds {
				a.tokens = append(a.tokens, t)
			}
			continue
		}
		a.tokens = append(a.tokens, t)
		a.hold(id)
		a.cutAtStop()
	}
	return a.release(a.certain())
}

// hold adds the text of a token.
func (a *assembler) hold(id int32) {
	text := a.stream.Push(id)
	if a.skipSpecial && a.tokenizer.IsSpecial(id) && text != "" {
		own := len(text) // what stands before it are the remains of an unfinished character
		if raw := a.tokenizer.TokenBytes(id); strings.HasSuffix(text, string(raw)) {
			own = len(raw)
		}
		end := len(a.held) + len(text)
		a.hidden = append(a.hidden, span{end - own, end})
	}
	a.held += text
}

// finish gives the rest of the text and of the tokens.
func (a *assembler) finish() piece {
	if !a.stopped {
		a.held += a.stream.Flush()
		a.cutAtStop()
	}
	p := a.release(len(a.held))
	p.tokens = append(p.tokens, a.tokens...)
	a.tokens = nil
	return p
}

// cutAtStop looks for the first stop string in what is held and drops the text from there on, with the tokens that begin there.
func (a *assembler) cutAtStop() {
	first, end := -1, 0
	for _, s := range a.stops {
		if i := strings.Index(a.held, s); i >= 0 && (first < 0 || i < first) {
			first, end = i, i
			a.stop = s
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
	for len(a.hidden) > 0 && a.hidden[len(a.hidden)-1].to > end {
		last := &a.hidden[len(a.hidden)-1]
		if last.from < end {
			last.to = end
			break
		}
		a.hidden = a.hidden[:len(a.hidden)-1]
	}
	if a.keepAll {
		return
	}
	kept := a.tokens[:0]
	for _, t := range a.tokens {
		if t.at < a.released+end {
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
	for from := max(0, len(a.held)-a.longest+1); from < len(a.held); from++ {
		for _, s := range a.stops {
			if strings.HasPrefix(s, a.held[from:]) {
				return from
			}
		}
	}
	return len(a.held)
}

// release gives out n bytes of the held text, special tokens left out. Tokens go with the text they begin in; those that have given none yet wait.
func (a *assembler) release(n int) piece {
	p := piece{text: a.visible(n), runs: a.runs(n)}
	a.chars += utf8.RuneCountInString(p.text)
	a.held = a.held[n:]
	a.released += n
	later := a.hidden[:0]
	for _, h := range a.hidden {
		if h.to > n {
			later = append(later, span{max(0, h.from-n), h.to - n})
		}
	}
	a.hidden = later
	count := 0
	for count < len(a.tokens) && a.tokens[count].at < a.released {
		count++
	}
	p.tokens = append(p.tokens, a.tokens[:count]...)
	a.tokens = append(a.tokens[:0], a.tokens[count:]...)
	return p
}

// runs is the text of the first n held bytes with what is left out of it.
func (a *assembler) runs(n int) (out []run) {
	add := func(from, to int, special bool) {
		if from < to {
			out = append(out, run{a.held[from:to], special})
		}
	}
	from := 0
	for _, h := range a.hidden {
		if h.from >= n {
			break
		}
		add(from, h.from, false)
		from = min(h.to, n)
		add(h.from, from, true)
	}
	add(from, n, false)
	return out
}

// visible is the text of the first n held bytes.
func (a *assembler) visible(n int) string {
	if len(a.hidden) == 0 {
		return a.held[:n]
	}
	var out strings.Builder
	from := 0
	for _, h := range a.hidden {
		if h.from >= n {
			break
		}
		out.WriteString(a.held[from:h.from])
		from = min(h.to, n)
	}
	out.WriteString(a.held[from:n])
	return out.String()
}

func (a *assembler) visibleChars() int {
	return utf8.RuneCountInString(a.visible(len(a.held)))
}

func TopRow(top plugins.TopLogprobs, row int) []Alternative {
	out := make([]Alternative, 0, top.K)
	for j := range top.K {
		out = append(out, Alternative{top.IDs[row*top.K+j], top.Logprobs[row*top.K+j]})
	}
	return out
}
