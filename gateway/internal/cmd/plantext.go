package cmd

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/plugins"
)

// planWidth is that of a plan's text.
const planWidth = 80

// planText is a plan for people, as far as it is written.
type planText struct{ strings.Builder }

// describePlan writes a plan for people, within 80 columns.
func describePlan(p *plugins.Plan) string {
	t := &planText{}
	m := &p.Model
	t.paragraph("", fmt.Sprintf("%s: %s parameters, %d layers, %s, %s tokens; sizes from %s", m.Architecture, thousands(m.Parameters), m.Layers, m.DType, thousands(int64(m.MaxContextLength)), m.Source))
	t.WriteByte('\n')
	t.row("weights of the base model", m.WeightBytes)
	t.row("keys and values of a token", m.TokenBytes)
	if m.StateBytes > 0 {
		t.row("state of a sequence, of recurrent layers", m.StateBytes)
	}
	a := &p.Adapter
	t.row(fmt.Sprintf("adapter of rank %d, %s parameters", a.Rank, thousands(a.Parameters)), a.WeightBytes)
	t.row("  its gradient", a.GradientBytes)
	t.row("  its Adam moments", a.MomentBytes)
	t.row("  the most at once, in an optimizer step", a.StepBytes)
	t.passes(p.Passes)
	t.placements(p)
	for _, advice := range append(p.Advice, p.Notes...) {
		t.WriteByte('\n')
		t.paragraph("", advice)
	}
	return t.String()
}

// row is a size with its name.
func (t *planText) row(name string, bytes int64) {
	fmt.Fprintf(t, "%-50s %12s\n", name, size(bytes))
}

func (t *planText) passes(passes []plugins.PlannedPass) {
	if len(passes) == 0 {
		return
	}
	fmt.Fprintf(t, "\n%-37s %12s %12s\n", "training pass, activations", "kept", "recomputed")
	for _, p := range passes {
		fmt.Fprintf(t, "%-37s %12s %12s\n", "  "+thousands(int64(p.Tokens))+" tokens", size(p.KeptBytes), size(p.RecomputedBytes))
	}
}

func (t *planText) placements(p *plugins.Plan) {
	m := &p.Machine
	kind := map[string]string{"cpu": "processors", "cuda": "GPUs"}[m.Device]
	if m.Devices == 1 {
		kind = strings.TrimSuffix(kind, "s")
	}
	text := fmt.Sprintf("%d %s", m.Devices, kind)
	switch {
	case m.MemoryBytes == 0:
		text += ", as much memory as " + m.Source + " says"
	case m.Devices == 1 || m.Device == "cpu":
		text += fmt.Sprintf(" with %s (%s), of which nine tenths are used", size(m.MemoryBytes), m.Source)
	default:
		text += fmt.Sprintf(" with %s each (%s), of which nine tenths are used", size(m.MemoryBytes), m.Source)
	}
	t.WriteByte('\n')
	t.paragraph("", text)
	const row = "%-21s%-10s%9s%9s%9s%9s%12s\n"
	fmt.Fprintf(t, "\n"+row, "placement", "good for", "weights", "sampler", "cache", "left", "datum")
	for i := range p.Placements {
		q := &p.Placements[i]
		if len(q.Devices) == 0 {
			fmt.Fprintf(t, "%-21s%s\n", q.Name, q.Fits)
			continue
		}
		d := q.Devices[0]
		for _, other := range q.Devices[1:] {
			d.WeightBytes, d.SamplerBytes, d.CacheBytes, d.LeftBytes = max(d.WeightBytes, other.WeightBytes), max(d.SamplerBytes, other.SamplerBytes), max(d.CacheBytes, other.CacheBytes), min(d.LeftBytes, other.LeftBytes)
		}
		fmt.Fprintf(t, row, q.Name, q.Fits, short(d.WeightBytes), short(d.SamplerBytes), short(d.CacheBytes), short(d.LeftBytes), thousands(int64(q.LongestDatum)))
	}
	t.paragraph("", "Sizes are of the device with least room; what is left goes to adapters and training passes; datum is the most tokens that train in one piece.")
	t.WriteByte('\n')
	for i := range p.Placements {
		q := &p.Placements[i]
		if q.Reason != "" {
			t.paragraph("", q.Name+": "+q.Reason)
		} else if q.Fits == plugins.FitsTraining {
			t.paragraph("", q.Name+": "+room(q))
		}
	}
}

// room says what a placement has room for.
func room(q *plugins.PlannedPlacement) string {
	how := "activations kept"
	if q.Recompute {
		how = "activations recomputed"
	}
	return fmt.Sprintf("sequences of up to %s tokens, %d sampled at once, keys and values of %s tokens; training passes of %s tokens, %s; a datum of up to %s tokens with activations kept; adapters in memory with their moments: %d",
		thousands(int64(q.Context)), q.Sequences, thousands(int64(q.CacheTokens)), thousands(int64(q.BatchTokens)), how, thousands(int64(q.KeptDatum)), q.Adapters)
}

// paragraph breaks a text into lines, all but the first of which are indented by two more.
func (t *planText) paragraph(indent, text string) {
	line := indent
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
			line += word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > planWidth:
			t.WriteString(line + "\n")
			line = indent + "  " + word
		default:
			line += " " + word
		}
	}
	t.WriteString(line + "\n")
}

// short is size in a column, in which there is no space before the unit.
func short(bytes int64) string { return strings.Replace(size(bytes), " ", "", 1) }

// thousands writes a whole number with commas.
func thousands(n int64) string {
	text := strconv.FormatInt(n, 10)
	for at := len(text) - 3; at > 0 && text[at-1] != '-'; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}
