// Package history keeps the series of a run: what an optimizer step, a validation pass or a client's own program said at one step after the other. A table of rows lies in blocks of columns, with a
// head that says what all of it is; both have a compact form with a version. A table has at most MaxRows rows: beyond that every second one goes, then every second one of what is left, and the head
// says so. It also folds the finished operations of a run into rows (fold.go), and thins what is drawn (series.go). It knows no store, no run and no HTTP: whoever has a table keeps its head and its
// blocks, and writes them together.
package history

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// Bounds of one table.
const (
	MaxRows   = 10_000    // rows that are kept
	MaxValues = 1_000_000 // values that are kept, over all names
	MaxNames  = 512       // series
	MaxName   = 200       // bytes of a name
	BlockRows = 64        // of a full block

	maxBlockRows = 2 * BlockRows // that are read
)

// Row is what is known at one step.
type Row struct {
	Step   int64
	Time   int64   // Unix milliseconds; 0 = not known
	Values []Value // each name once, in any order
}

// Value is one number of a row. It may be NaN or infinite: then it was given, and is no number.
type Value struct {
	Name   string
	Number float64
}

// get finds a value.
func (r *Row) get(name string) (float64, bool) {
	for _, v := range r.Values {
		if v.Name == name {
			return v.Number, true
		}
	}
	return 0, false
}

// Equal tells whether two rows say the same in the same order.
func (r *Row) Equal(o *Row) bool {
	return r.Step == o.Step && slices.EqualFunc(r.Values, o.Values, func(a, b Value) bool {
		return a.Name == b.Name && math.Float64bits(a.Number) == math.Float64bits(b.Number)
	})
}

// set replaces a value, or adds it.
func (r *Row) set(name string, number float64) {
	for i := range r.Values {
		if r.Values[i].Name == name {
			r.Values[i].Number = number
			return
		}
	}
	r.Values = append(r.Values, Value{name, number})
}

// CheckName refuses names of series that could not be shown in one line as what they are: empty ones, long ones, and those with control or formatting characters, such as those that turn the direction of
// writing round.
func CheckName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("is empty, must have 1 … %d bytes", MaxName)
	case len(name) > MaxName:
		return fmt.Errorf("%s has %d bytes, at most %d are allowed", Quote(name), len(name), MaxName)
	case !utf8.ValidString(name):
		return fmt.Errorf("%s must be UTF-8", Quote(name))
	}
	for _, r := range name {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("%s has the character %U, which is not printable", Quote(name), r)
		}
	}
	return nil
}

// Quote shows the beginning of a text of any size in one line of plain characters.
func Quote(text string) string {
	const most = 60
	if len(text) > most {
		return strconv.QuoteToASCII(text[:most]) + "…"
	}
	return strconv.QuoteToASCII(text)
}

// missing stands in a column for a value that was not given: one of the many bit patterns of NaN, which no arithmetic makes.
var missing = math.Float64frombits(0x7ff8_0000_7469_6e00)

func isMissing(v float64) bool { return math.Float64bits(v) == math.Float64bits(missing) }

// given keeps a client's NaN apart from missing.
func given(v float64) float64 {
	if math.IsNaN(v) {
		return math.NaN()
	}
	return v
}
