package grammar

import "fmt"

// Limits bound what a grammar may take. Each is counted, so that what is refused is refused everywhere and always.
type Limits struct {
	Rules       int // rules, networks and counted lists of one grammar
	States      int // states of all networks of one grammar
	Expressions int // expressions of one Builder, those it makes to answer questions included
	Text        int // bytes of all literals and 8 for each range of all classes
	Count       int // the largest finite count of a repetition
	Encoding    int // bytes of Encode
	Steps       int // derivatives that all questions to a Builder and the pruning of a grammar may take together

	LexerStates   int // states of the lexer that one sequence may make while its grammar's caches hold nothing else
	LexemesAlive  int // terminals that may be under way in one lexer state
	Items         int // Earley items of one row
	MaskSteps     int // transitions of one mask
	MatcherMemory int // bytes that one sequence may make a compiled grammar's tables hold, as counted
}

// DefaultLimits are the bounds for grammars that users send.
func DefaultLimits() Limits {
	return Limits{
		Rules:       200_000,
		States:      2_000_000,
		Expressions: 1_000_000,
		Text:        4 << 20,
		Count:       1 << 30,
		Encoding:    1 << 20,
		Steps:       2_000_000,

		LexerStates:   20_000,
		LexemesAlive:  20_000,
		Items:         40_000,
		MaskSteps:     3_000_000,
		MatcherMemory: 32 << 20,
	}
}

// LimitError says that a grammar, or a text under it, is larger than a limit allows.
type LimitError struct {
	What  string // what is counted, in the plural
	Count int    // how many there are, at least
	Limit int
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("grammar too large: %s: %d > %d", e.What, e.Count, e.Limit)
}
