package cmd

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/tinsmith/tinsmith/plugins"
)

// writeMemory prints how the backend of a model shares its memory out, as a table. Names and details come from the backend.
func writeMemory(w io.Writer, model string, shares []plugins.MemoryShare) error {
	if len(shares) == 0 {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\nmemory of %s\n", model)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, s := range shares {
		size := ""
		if s.Bytes > 0 {
			size = fmt.Sprintf("%8.1f MiB", float64(s.Bytes)/(1<<20))
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\n", s.Name, size, s.Detail)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}
