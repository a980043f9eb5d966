package jinja_test

import (
	"strings"
	"testing"
)

// TestCasing: the expected texts are what Python 3.11 prints.
func TestCasing(t *testing.T) {
	cases := map[string]struct{ source, want string }{
		"sharp s":               {"{{ 'straße'.upper() }} {{ 'ß'.title() }} {{ 'ß'|capitalize }} {{ 'ß'.casefold() }}", "STRASSE Ss Ss ss"},
		"final sigma":           {"{{ 'ΑΣ ΑΣΑ Σ'.lower() }} {{ 'ΑΣ.'|lower }} {{ 'ʰΣ'.lower() }}", "ας ασα σ ας. ʰσ"},
		"titles":                {"{{ \"they're bill's\".title() }} {{ \"they're (bill's)-x\"|title }}", "They'Re Bill'S They're (Bill's)-X"},
		"digraphs":              {"{{ 'ǆ'.title() }}{{ 'ǆ'.upper() }}{{ 'Ǆ'.lower() }} {{ 'ŉ'.upper() }}", "ǅǄǆ ʼN"},
		"dotted capital i":      {"{{ 'İ'.lower()|length }}", "2"},
		"folding Cherokee":      {"{{ 'Ꭰꭰ'.casefold() }}", "ᎠᎠ"},
		"many sigmas, linearly": {"{{ ('Σa.' * 50000).title()|length }}", "150000"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got, err := render(t, c.source); err != nil || strings.TrimSpace(got) != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}
