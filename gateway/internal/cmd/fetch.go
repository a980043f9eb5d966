package cmd

import (
	"fmt"
	"path/filepath"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/tinsmith/tinsmith/gateway/internal/hub"
)

// fetchCommand finds a model as `serve` does. Plugins that serve gateways on other machines call it, for they speak no HTTP.
func fetchCommand() *cobra.Command {
	return &cobra.Command{
		Use: "fetch MODEL", Short: "Find a model's directory, or download it, and print where it is", Args: cobra.ExactArgs(1),
		Long: `Find a model as serve does: a directory, a name in the local Hugging Face cache, or hf://org/name[@revision], which is downloaded into that cache unless it is there. Its directory is printed.

Every file is compared with the hub's checksum, and what was cut off goes on. The token is HF_TOKEN, or what Hugging Face's own tool keeps in a file; HF_ENDPOINT names another hub.`,
		RunE: func(c *cobra.Command, args []string) error {
			var picture *progressbar.ProgressBar
			dir, err := hub.Resolve(c.Context(), args[0], func(done, total int64) {
				if picture == nil {
					picture = bar(total, "downloading "+args[0])
				}
				_ = picture.Set64(done) // only a picture
			})
			if picture != nil {
				_ = picture.Finish()
			}
			if err != nil {
				return err
			}
			if dir, err = filepath.Abs(dir); err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), dir)
			return err
		},
	}
}
