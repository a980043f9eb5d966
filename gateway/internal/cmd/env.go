package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/hub"
	"github.com/tinsmith/tinsmith/gateway/internal/merge"
	"github.com/tinsmith/tinsmith/gateway/internal/server"
)

const (
	// anyKey is taken where no key is needed. The Tinker SDK asks for this beginning.
	anyKey = "tml-local"
	// maxTokenizer bounds the files of a model that go into the cache; the largest tokenizers have some 40 MiB.
	maxTokenizer = 256 << 20
	// maxTokenizers bounds those of all models of a server together.
	maxTokenizers = 8 * maxTokenizer
	// llama is where both the Tinker SDK and the cookbook look for the tokenizer of models whose name begins with llamaPrefix.
	llamaPrefix = "meta-llama/Llama-3"
	llama       = "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer"
)

func envCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "env", Short: `Print the variables by which clients find a server: eval "$(tinsmith env)"`, Args: cobra.NoArgs,
		Long: `Print shell commands that set the address and the key for the Tinker SDK, for OpenAI clients and for tinsmith itself, and a Hugging Face cache in which the served models' tokenizers lie under
the names that the server has for them. The cache has links to everything in your own.

    eval "$(tinsmith env)"

Hugging Face's tools are set to work offline, because they would else ask the Hub for names that only this server knows, or take its tokenizer for a name that here means another model. For one command that
downloads something: HF_HUB_OFFLINE=0 COMMAND.`,
	}
	conn := addConnection(c)
	folder := c.Flags().String("cache", "", "folder for the Hugging Face cache (default: huggingface in the server's data directory, else in your own cache directory)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		about, err := conn.environment(c.Context())
		if err != nil {
			return err
		}
		dir, err := cacheFolder(*folder, about.Folder, conn.url)
		if err != nil {
			return err
		}
		repositories, err := conn.tokenizers(c.Context(), about, c.ErrOrStderr())
		if err != nil {
			return err
		}
		if err := hub.Overlay(dir, hub.UserCache(), repositories); err != nil {
			return fmt.Errorf("the Hugging Face cache for clients: %w", err)
		}
		for _, v := range [][2]string{
			{"TINKER_BASE_URL", conn.url}, {"TINKER_API_KEY", conn.key}, {"OPENAI_BASE_URL", conn.url + "/v1"}, {"OPENAI_API_KEY", conn.key}, {"TINSMITH_URL", conn.url},
			{"HF_HUB_CACHE", dir}, {"HF_HUB_OFFLINE", "1"},
		} {
			fmt.Fprintf(c.OutOrStdout(), "export %s=%s\n", v[0], shellQuote(v[1]))
		}
		if conn.ca != "" { // by the names under which Python's, Node's and this program's clients look for it
			ca, err := filepath.Abs(conn.ca)
			if err != nil {
				return err
			}
			for _, name := range []string{"TINSMITH_CA", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"} {
				fmt.Fprintf(c.OutOrStdout(), "export %s=%s\n", name, shellQuote(ca))
			}
		}
		if out, ok := c.OutOrStdout().(*os.File); ok && term.IsTerminal(int(out.Fd())) {
			fmt.Fprintf(c.ErrOrStderr(), "\nNothing is set yet. This sets it in your shell:  eval \"$(%s env)\"\n", os.Args[0])
		}
		return nil
	}
	return c
}

// environment is what a server says about itself to clients.
type environment struct {
	Models []struct {
		Name    string   `json:"name"`
		Aliases []string `json:"aliases"`
	} `json:"models"`
	KeyRequired bool   `json:"key_required"`
	Folder      string `json:"folder"`
}

// environment asks without a key first: a server that needs none is not told one that may be meant for another.
func (conn *connection) environment(ctx context.Context) (environment, error) {
	const path = "/api/v1/tinsmith/environment"
	var about environment
	key := conn.key
	conn.key = ""
	err := conn.call(ctx, http.MethodGet, path, nil, &about)
	var bad *badAnswer
	switch {
	case err == nil:
		conn.key = anyKey
		return about, nil
	case !errors.As(err, &bad) || bad.status != http.StatusUnauthorized:
		return about, err
	case key == "":
		return about, fmt.Errorf("the server at %s needs a key: give yours with --key, or in TINKER_API_KEY before. Whoever runs the server makes one with: tinsmith key add NAME --file KEYS", conn.url)
	}
	conn.key = key
	if err := conn.call(ctx, http.MethodGet, path, nil, &about); err != nil {
		return about, fmt.Errorf("the key from --key or TINKER_API_KEY: %w", err)
	}
	return about, nil
}

// cacheFolder is where the cache goes: what the user said, else what the server said if that is on this machine and may be written, else a folder of the user's for this server.
func cacheFolder(asked, told, address string) (string, error) {
	if asked != "" {
		return filepath.Abs(asked)
	}
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	if isDataOf(told, u) && os.MkdirAll(filepath.Join(told, "hub"), 0o700) == nil {
		return filepath.Join(told, "hub"), nil
	}
	own, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no place for the Hugging Face cache; name one with --cache: %w", err)
	}
	return filepath.Join(own, "tinsmith", strings.NewReplacer(":", "_", "[", "", "]", "").Replace(u.Host), "huggingface", "hub"), nil
}

// isDataOf tells whether a folder is in the data directory of the server at an address. That has the address in it. What a server says of itself is not enough: it could name any folder, of another server too.
func isDataOf(told string, address *url.URL) bool {
	if !filepath.IsAbs(told) || filepath.Base(told) != "huggingface" || !config.Loopback(address.Hostname()) {
		return false
	}
	left, err := url.Parse(server.Address(filepath.Dir(told)))
	return err == nil && left.Port() != "" && left.Port() == address.Port()
}

// tokenizers reads the files of all served models but their weights, by all names that Hugging Face's tools can ask for.
func (conn *connection) tokenizers(ctx context.Context, about environment, messages io.Writer) (map[string]map[string][]byte, error) {
	lists, total := make([][]merge.File, len(about.Models)), int64(0)
	for i, m := range about.Models {
		list, err := (&modelDirectory{conn, m.Name}).Files(ctx)
		if err != nil {
			return nil, err
		}
		size := int64(0)
		for _, f := range list {
			if strings.HasSuffix(f.Name, ".safetensors") || strings.HasSuffix(f.Name, ".safetensors.index.json") {
				continue
			}
			if f.Size < 0 || f.Size > maxTokenizer-size {
				return nil, fmt.Errorf("the files of %s beside its weights have more than %d MiB", m.Name, maxTokenizer>>20)
			}
			size += f.Size
			lists[i] = append(lists[i], f)
		}
		if total += size; total > maxTokenizers {
			return nil, fmt.Errorf("the files of the served models beside their weights have more than %d MiB", maxTokenizers>>20)
		}
	}
	repositories := map[string]map[string][]byte{}
	for i, m := range about.Models {
		files := map[string][]byte{}
		for _, f := range lists[i] {
			content, err := conn.content(ctx, m.Name, f)
			if err != nil {
				return nil, fmt.Errorf("%s of %s: %w", f.Name, m.Name, err)
			}
			files[f.Name] = content
		}
		for _, name := range append([]string{m.Name}, m.Aliases...) {
			if !hub.Repository(name) {
				fmt.Fprintf(messages, "note: %q is not a name that Hugging Face's tools take; give the model an alias such as org/name\n", name)
				continue
			}
			repositories[name] = files
			if strings.HasPrefix(name, llamaPrefix) && repositories[llama] == nil {
				repositories[llama] = files
			}
		}
	}
	return repositories, nil
}

// content reads a file of a model's directory.
func (conn *connection) content(ctx context.Context, model string, f merge.File) ([]byte, error) {
	r, err := (&modelDirectory{conn, model}).Open(ctx, f.Name, 0, f.Size)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	content := make([]byte, f.Size)
	_, err = io.ReadFull(r, content)
	return content, err
}

// shellQuote makes a word of a POSIX shell that means a text and nothing else.
func shellQuote(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
