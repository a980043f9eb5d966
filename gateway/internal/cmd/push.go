package cmd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tinsmith/tinsmith/gateway/internal/hub"
	"github.com/tinsmith/tinsmith/plugins"
)

func pushCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "push RUN_OR_PATH hf://org/name", Short: "Upload an adapter, or the model with it merged in, to a hub", Args: cobra.ExactArgs(2),
		Long: `Upload a run's adapter or a checkpoint to a repository of a hub, with a model card, in one commit. The repository is made if it is not there.

RUN_OR_PATH is what export takes: a run (RUN or tinker://RUN) or a checkpoint (tinker://RUN/weights/NAME, tinker://RUN/sampler_weights/NAME). With --merge it is the whole model that is uploaded.

The token is HF_TOKEN, or what Hugging Face's own tool keeps in a file; HF_ENDPOINT names another hub. What was cut off is called again: large files that have arrived are not sent twice.`,
	}
	conn := addConnection(c)
	form := addForm(c)
	private := c.Flags().Bool("private", false, "make the repository private; one that is there and public is refused")
	replace := c.Flags().Bool("replace", false, "delete models and adapters of other files that the repository has, and a README.md that somebody has written")
	work := c.Flags().String("work", "", "folder for the files before they are uploaded (default: that of temporary files)")
	c.RunE = func(c *cobra.Command, args []string) error {
		to, err := hub.ParseReference(args[1])
		if err != nil {
			return err
		}
		if to.Revision != "" || !strings.Contains(to.Repository, "/") {
			return fmt.Errorf("%.200q is not hf://org/name: a push goes to the newest state of a repository", args[1])
		}
		if err := form.check(c); err != nil {
			return err
		}
		work, err := os.MkdirTemp(*work, "tinsmith-push-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(work)
		dir := filepath.Join(work, "files")
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		e := &exporting{connection: conn, form: *form, name: args[0], messages: c.ErrOrStderr()}
		if err := e.write(c.Context(), dir); err != nil {
			return err
		}
		for _, own := range []string{plugins.ManifestFile, plugins.CompleteFile} { // of a checkpoint; other programs have no use for them, and they would stay beside a later push
			if err := os.Remove(filepath.Join(dir, own)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		picture := bar(-1, "uploading")
		defer picture.Finish() //nolint:errcheck // only a picture
		pushed, err := hub.Push(c.Context(), hub.Upload{
			Repository: to.Repository, Private: *private, Replace: *replace, Dir: dir, Displaced: displaced, CardMark: cardMark, Summary: "tinsmith push: step " + e.step,
		}, func(done, total int64) {
			picture.ChangeMax64(total)
			_ = picture.Set64(done)
		})
		if err != nil {
			return err
		}
		if pushed.KeptCard {
			fmt.Fprintln(c.ErrOrStderr(), "note: the repository's README.md was written by somebody and stays as it is; --replace overwrites it")
		}
		did := "pushed as"
		if pushed.Same {
			did = "is already there as"
		}
		_, err = fmt.Fprintf(shown{c.OutOrStdout()}, "%s, step %s, of %s %s\nhf://%s@%s\n", e.path, e.step, e.model, did, to.Repository, pushed.Commit)
		return err
	}
	return c
}

// displaced tells whether a file of a repository makes it something else than what is pushed: a program would load it beside that, or instead.
func displaced(name string) bool {
	if strings.Contains(name, "/") {
		return false
	}
	switch name {
	case "config.json", "model.safetensors.index.json", "pytorch_model.bin.index.json", plugins.AdapterConfigFile, plugins.ManifestFile, plugins.CompleteFile:
		return true
	}
	return filepath.Ext(name) == ".safetensors" || filepath.Ext(name) == ".bin"
}
