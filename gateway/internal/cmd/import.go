package cmd

import (
	"archive/tar"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

func importCommand() *cobra.Command {
	c := &cobra.Command{Use: "import DIR --base MODEL", Short: "Give a PEFT adapter directory to a server, to train it on and to sample it", Args: cobra.ExactArgs(1)}
	conn := addConnection(c)
	base := c.Flags().String("base", "", "the served model that the adapter was made for")
	name := c.Flags().String("name", "", "name of the checkpoints (default: the directory's name)")
	if err := c.MarkFlagRequired("base"); err != nil {
		panic(err) // a programming error
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		dir, err := filepath.Abs(args[0])
		if err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(dir, "adapter_config.json")); err != nil {
			return fmt.Errorf("%s is not a PEFT adapter: %w", args[0], err)
		}
		if *name == "" {
			*name = filepath.Base(dir)
		}
		return importAdapter(c, conn, dir, *base, *name, folderName(dir))
	}
	return c
}

// folderName is what is said of where a folder's adapter is from; "" of a name that could not be shown as it is.
func folderName(dir string) string {
	name := filepath.Base(dir)
	if !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return ""
	}
	return name
}

// importAdapter gives an adapter's folder to a server and tells what has become of it. source is where the folder is from.
func importAdapter(c *cobra.Command, conn *connection, dir, base, name, source string) error {
	r, w := io.Pipe()
	go func() { w.CloseWithError(writeTar(w, dir)) }()
	defer r.Close()
	var answer struct {
		Training string `json:"training_path"`
		Sampler  string `json:"sampler_path"`
		Notices  []string
	}
	query := url.Values{"base_model": {base}, "name": {name}, "source": {source}}
	if err := conn.call(c.Context(), http.MethodPost, "/api/v1/tinsmith/import?"+query.Encode(), r, &answer); err != nil {
		return err
	}
	fmt.Fprintf(shown{c.OutOrStdout()}, "train it on:  %s\nsample it:    %s\n", answer.Training, answer.Sampler)
	for _, notice := range answer.Notices {
		fmt.Fprintf(shown{c.ErrOrStderr()}, "note: %s\n", notice)
	}
	return nil
}

// writeTar writes the regular files of a directory, without folders.
func writeTar(w io.Writer, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	t := tar.NewWriter(w)
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(dir, e.Name())) // the user's own links are followed
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			continue
		}
		if err := addFile(t, filepath.Join(dir, e.Name()), info); err != nil {
			return fmt.Errorf("%s: %w", e.Name(), err)
		}
	}
	return t.Close()
}

func addFile(t *tar.Writer, path string, info os.FileInfo) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := t.WriteHeader(&tar.Header{Name: info.Name(), Mode: 0o644, Size: info.Size(), Typeflag: tar.TypeReg, Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err = io.Copy(t, f)
	return err
}
