package jinja

import "strings"

// output collects text in pieces, so that growing copies nothing. The zero value is empty and ready.
type output struct {
	full  []string
	piece strings.Builder
	bytes int
}

// outputPiece is where a next piece begins.
const outputPiece = 256 << 10

func (o *output) WriteString(s string) {
	o.bytes += len(s)
	if o.piece.Len()+len(s) > outputPiece {
		if o.piece.Len() > 0 {
			o.full = append(o.full, o.piece.String())
			o.piece = strings.Builder{}
			o.piece.Grow(outputPiece)
		}
		if len(s) > outputPiece/2 {
			o.full = append(o.full, s) // as it is: a string does not change
			return
		}
	}
	o.piece.WriteString(s)
}

// String gives all that was written.
func (o *output) String() string {
	if len(o.full) == 0 {
		return o.piece.String()
	}
	if len(o.full) == 1 && o.piece.Len() == 0 {
		return o.full[0]
	}
	var all strings.Builder
	all.Grow(o.bytes)
	for _, piece := range o.full {
		all.WriteString(piece)
	}
	all.WriteString(o.piece.String())
	return all.String()
}
