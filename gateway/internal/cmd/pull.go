package cmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/tinsmith/tinsmith/gateway/internal/hub"
	"github.com/tinsmith/tinsmith/plugins"
)

func pullCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "pull hf://org/name[@revision] [DIR]", Short: "Download an adapter or a model from a hub, and give an adapter to a server", Args: cobra.RangeArgs(1, 2),
		Long: `Download a repository of a hub into the Hugging Face cache; every file is compared with the hub's checksum, and what was cut off goes on.

An adapter then is imported, as import does it, and keeps its origin: repository, commit and SHA-256. With DIR, which must be empty or not there, the files go there, and no server is asked.
Of a model without DIR the command says how it is served.

The token is HF_TOKEN, or what Hugging Face's own tool keeps in a file; HF_ENDPOINT names another hub.`,
	}
	conn := addConnection(c)
	base := c.Flags().String("base", "", "of an adapter: the served model that it was made for (default: the one that its configuration names)")
	name := c.Flags().String("name", "", "of an adapter: name of the checkpoints (default: the repository's name)")
	c.RunE = func(c *cobra.Command, args []string) error {
		from, err := hub.ParseReference(args[0])
		if err != nil {
			return err
		}
		if len(args) == 2 && (*base != "" || *name != "") {
			return errors.New("--base and --name are for an import, and with DIR there is none")
		}
		picture := bar(-1, "downloading")
		got, err := hub.Pull(c.Context(), from, func(done, total int64) {
			picture.ChangeMax64(total)
			_ = picture.Set64(done)
		})
		_ = picture.Finish()
		if err != nil {
			return err
		}
		source := "hf://" + from.Repository + "@" + got.Commit
		if len(args) == 2 {
			if err := intoNewFolder(args[1], func(dir string) error { return copyFiles(got.Dir, dir) }); err != nil {
				return err
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "%s\n", source)
			return err
		}
		if !got.Adapter {
			if *base != "" || *name != "" {
				return fmt.Errorf("%s is a model and no adapter: --base and --name are not for it", source)
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "%s is a model, in %s\nserve it:  tinsmith serve --model %s\n", source, got.Dir, source)
			return err
		}
		if *base == "" {
			if *base, err = baseOf(got.Dir); err != nil {
				return err
			}
		}
		if *name == "" {
			*name = path.Base(from.Repository)
		}
		return importAdapter(c, conn, got.Dir, *base, *name, source)
	}
	return c
}

// baseOf is the base model that an adapter names.
func baseOf(dir string) (string, error) {
	f, err := os.Open(filepath.Join(dir, plugins.AdapterConfigFile))
	if err != nil {
		return "", err
	}
	defer f.Close()
	const most = 1 << 20
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return "", err
	}
	var config struct {
		Base string `json:"base_model_name_or_path"`
	}
	if len(b) > most || json.Unmarshal(b, &config) != nil || config.Base == "" {
		return "", errors.New("the adapter does not name its base model; say with --base which served model it was made for")
	}
	return config.Base, nil
}

// copyFiles copies the files of a snapshot, which are links into the cache.
func copyFiles(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name()[0] == '.' { // the mark of a whole snapshot
			continue
		}
		in, err := os.Open(filepath.Join(from, e.Name()))
		if err != nil {
			return err
		}
		err = saveFile(filepath.Join(to, e.Name()), in, io.Discard)
		if err := errors.Join(err, in.Close()); err != nil {
			return err
		}
	}
	return nil
}
