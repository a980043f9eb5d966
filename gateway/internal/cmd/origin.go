package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// origin is where an imported adapter came from, as a server says it.
type origin struct {
	Source string `json:"source"`
	SHA256 string `json:"sha256"`
}

// tell writes a line for each part that is known. how says what it is to what is listed: "imported", or "began as an import" of what was trained on since.
func (o origin) tell(w io.Writer, how string) {
	if o.Source != "" {
		fmt.Fprintf(w, "  %s from %s\n", how, printable(o.Source))
	}
	if o.SHA256 != "" {
		fmt.Fprintf(w, "  sha256 %s\n", printable(o.SHA256))
	}
}

// tellImports lists imported adapters with where they came from. A server of an older version does not know.
func tellImports(ctx context.Context, conn *connection, w io.Writer) error {
	var answer struct {
		Imports []struct {
			Path    string    `json:"path"`
			Base    string    `json:"base_model"`
			Rank    int       `json:"rank"`
			Created time.Time `json:"created_at"`
			Origin  origin    `json:"origin"`
		} `json:"imports"`
		More bool `json:"more"`
	}
	err := conn.call(ctx, http.MethodGet, "/api/v1/tinsmith/imports", nil, &answer)
	var bad *badAnswer
	if errors.As(err, &bad) && bad.status == http.StatusNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	for _, i := range answer.Imports {
		fmt.Fprintf(w, "%s\n  %s, rank %d, imported %s ago\n", i.Path, i.Base, i.Rank, since(i.Created))
		i.Origin.tell(w, "imported")
	}
	if answer.More {
		fmt.Fprintln(w, "and more imports than one answer has")
	}
	return nil
}
