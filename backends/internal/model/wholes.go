package model

// Whole is a module that files and other programs have as one, and that is several here, its parts.
type Whole struct {
	Parts []string // the modules' names
	Rows  []RowRange
}

// RowRange is rows [From, To) of a part.
type RowRange struct{ Part, From, To int }

// Order has the rows of the whole by part: those of the first part in ascending order, then those of the second one, and so on.
func (w Whole) Order() []int {
	byPart, row := make([][]int, len(w.Parts)), 0
	for _, r := range w.Rows {
		for range r.To - r.From {
			byPart[r.Part] = append(byPart[r.Part], row)
			row++
		}
	}
	var all []int
	for _, rows := range byPart {
		all = append(all, rows...)
	}
	return all
}

// part is a module that is some rows of a fused tensor, or a tensor of its own.
type part struct {
	name string
	out  int
}

// below are parts one below another.
func below(parts ...part) Whole { return inTurns(1, parts...) }

// inTurns are parts of which so many groups of rows, each of them of the given size, take turns.
func inTurns(groups int, parts ...part) Whole {
	var w Whole
	for _, p := range parts {
		w.Parts = append(w.Parts, p.name)
	}
	for g := range groups {
		for i, p := range parts {
			w.Rows = append(w.Rows, RowRange{i, g * p.out, (g + 1) * p.out})
		}
	}
	return w
}

// takeApart finds the parts of a fused tensor, adds them to sources by the names that they have without the prefix, and notes the whole: LoRA is on the parts.
func (l *Loader) takeApart(sources map[string]Source, prefix, fused string, in int, w Whole) error {
	pieces, row := make([][]extent, len(w.Parts)), 0 // of the whole's rows, by part
	for _, r := range w.Rows {
		next := row + r.To - r.From
		if p := pieces[r.Part]; len(p) > 0 && p[len(p)-1].to == row {
			p[len(p)-1].to = next
		} else {
			pieces[r.Part] = append(p, extent{row, next})
		}
		row = next
	}
	whole, err := l.Weight(prefix+fused, row, in)
	if err != nil {
		return err
	}
	named := Whole{Rows: w.Rows}
	for i, name := range w.Parts {
		sources[name] = whole.pieces(pieces[i])
		named.Parts = append(named.Parts, prefix+name)
	}
	if l.model.Wholes == nil {
		l.model.Wholes = map[string]Whole{}
	}
	l.model.Wholes[prefix+fused] = named
	return nil
}
