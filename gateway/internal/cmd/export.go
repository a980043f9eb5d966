package cmd

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
	"github.com/tinsmith/tinsmith/gateway/internal/merge"
	"github.com/tinsmith/tinsmith/plugins"
)

func exportCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "export RUN_OR_PATH DIR", Short: "Write an adapter as a PEFT directory, or merged into its base model", Args: cobra.ExactArgs(2),
		Long: `Write a run's adapter or a checkpoint into DIR, which must be empty or not there.

RUN_OR_PATH is a run (RUN or tinker://RUN: the newest weights while it is live, its newest checkpoint afterwards) or a checkpoint of any kind (tinker://RUN/weights/NAME,
tinker://RUN/sampler_weights/NAME). With --merge DIR becomes a model that needs no adapter.`,
	}
	conn := addConnection(c)
	form := addForm(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := form.check(c); err != nil {
			return err
		}
		e := &exporting{connection: conn, form: *form, name: args[0], messages: c.ErrOrStderr()}
		if err := intoNewFolder(args[1], func(dir string) error { return e.write(c.Context(), dir) }); err != nil {
			return err
		}
		_, err := fmt.Fprintf(shown{c.OutOrStdout()}, "%s, step %s, of %s\n", e.path, e.step, e.model)
		return err
	}
	return c
}

// form is what an adapter leaves as.
type form struct {
	merged             bool
	names, dtype, base string
	shard              int64 // MiB
}

// addForm adds the flags of the commands that write adapters.
func addForm(c *cobra.Command) *form {
	f := &form{}
	c.Flags().StringVar(&f.names, "names", plugins.ExportPEFT, "names of the adapter's tensors: peft, which PEFT loads, or tinker, the Tinker service's")
	c.Flags().BoolVar(&f.merged, "merge", false, "write the whole model with the adapter merged into it")
	c.Flags().StringVar(&f.dtype, "dtype", "", "with --merge: float32, bfloat16 or float16 (default: as the base model has it)")
	c.Flags().StringVar(&f.base, "base", "", "with --merge: the base model's directory on this machine (default: its files come from the server)")
	c.Flags().Int64Var(&f.shard, "shard-mib", 4768, "with --merge: the size from which on the weights are cut into several files")
	return f
}

// check refuses flags that do not go together, and completes them.
func (f *form) check(c *cobra.Command) error {
	if !f.merged && (f.dtype != "" || f.base != "" || c.Flags().Changed("shard-mib")) {
		return errors.New("--dtype, --base and --shard-mib need --merge")
	}
	if f.names != plugins.ExportPEFT && f.names != plugins.ExportTinker {
		return fmt.Errorf("--names: %.40q is not allowed: peft or tinker", f.names)
	}
	if f.merged && c.Flags().Changed("names") {
		return errors.New("--names is not for --merge: a merged model has no adapter")
	}
	if f.shard < 1 || f.shard > 1<<30 {
		return fmt.Errorf("--shard-mib: %d is not allowed: 1 to %d", f.shard, 1<<30)
	}
	if f.merged {
		f.names = plugins.ExportTinker // of all models there is that form, and it is the smallest
	}
	return nil
}

// intoNewFolder has fill write a folder that takes dir's place when it is whole and on disk. dir must not be there, or be an empty folder: that one stays the folder it is, since it may be where somebody is, a mount or a
// link, and gets what was written, configurations last, without which nothing loads it.
func intoNewFolder(dir string, fill func(dir string) error) (err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	there := err == nil
	switch {
	case len(entries) > 0:
		return fmt.Errorf("%s is not empty; name a new folder", dir)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o777); err != nil {
		return err
	}
	mark := ".unfinished-" + strings.ToLower(rand.Text()[:8])
	unfinished := filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+mark)
	if there {
		unfinished = filepath.Join(dir, mark)
	}
	if err := os.Mkdir(unfinished, 0o777); err != nil {
		return err
	}
	defer os.RemoveAll(unfinished) // it has its name by then, or is worth nothing
	if err := fill(unfinished); err != nil {
		return err
	}
	if err := durable.SyncFolder(unfinished); err != nil {
		return err
	}
	if there {
		return moveAll(unfinished, dir)
	}
	// Not os.Rename, which does not replace an empty folder. It fails if somebody has put something there meanwhile.
	if err := unix.Rename(unfinished, dir); err != nil {
		return fmt.Errorf("rename %s to %s: %w", unfinished, dir, err)
	}
	return durable.SyncFolder(filepath.Dir(dir))
}

// moveAll moves what a folder holds into the one that it is in, which holds nothing else.
func moveAll(from, to string) error {
	others, err := os.ReadDir(to)
	if err != nil {
		return err
	}
	if len(others) != 1 {
		return fmt.Errorf("something was put into %s meanwhile; name a new folder", to)
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	slices.SortStableFunc(entries, func(a, b os.DirEntry) int { return cmp.Compare(lateness(a.Name()), lateness(b.Name())) })
	for _, e := range entries {
		if err := os.Rename(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return durable.SyncFolder(to)
}

// lateness orders files: those without which a folder is neither a model nor an adapter come last.
func lateness(name string) int {
	if name == "config.json" || name == plugins.AdapterConfigFile || name == plugins.CompleteFile {
		return 1
	}
	return 0
}

// exporting is one call of the command.
type exporting struct {
	*connection
	form
	name     string
	messages io.Writer

	path, model, hash, step string // what the server says of the adapter
	about                   about
}

// write writes what is wanted into an empty folder, with a card.
func (e *exporting) write(ctx context.Context, dir string) error {
	adapter := dir
	if e.merged {
		adapter = dir + ".adapter"
		if err := os.Mkdir(adapter, 0o700); err != nil {
			return err
		}
		defer os.RemoveAll(adapter)
	}
	if err := e.fetch(ctx, adapter); err != nil {
		return err
	}
	var err error
	if e.merged {
		err = e.merge(ctx, dir, e.base, merge.Options{Adapter: adapter, DType: e.dtype, ShardBytes: e.shard << 20})
	} else {
		err = e.warnOfSharedHead(ctx, adapter)
	}
	if err != nil {
		return err
	}
	return e.writeCard(ctx, dir)
}

// bar is a progress bar on a terminal, and nothing elsewhere.
func bar(total int64, what string) *progressbar.ProgressBar {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return progressbar.DefaultBytesSilent(total, what)
	}
	return progressbar.DefaultBytes(total, what)
}

// adapterFiles are the files of an adapter that a server sends.
var adapterFiles = []string{plugins.AdapterConfigFile, plugins.AdapterWeightsFile, plugins.ManifestFile, plugins.CompleteFile}

// fetch writes the adapter's files, in the names that are wanted, into an empty folder.
func (e *exporting) fetch(ctx context.Context, dir string) error {
	res, err := e.open(ctx, "/api/v1/tinsmith/export?"+url.Values{"path": {e.name}, "names": {e.names}}.Encode(), "")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	e.path, e.model, e.hash, e.step = res.Header.Get("X-Tinsmith-Path"), res.Header.Get("X-Tinsmith-Base-Model"), res.Header.Get("X-Tinsmith-Model-Hash"), res.Header.Get("X-Tinsmith-Step")
	if e.about, err = readAbout(res.Header.Get("X-Tinsmith-Card")); err != nil {
		return err
	}
	picture := bar(-1, "adapter")
	defer picture.Finish() //nolint:errcheck // only a picture
	in := tar.NewReader(res.Body)
	seen := map[string]bool{}
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("the server's answer ended early: %w", err)
		}
		if h.Typeflag != tar.TypeReg || seen[h.Name] || !slices.Contains(adapterFiles, h.Name) {
			return fmt.Errorf("the server sent %.100q, which is no file of an adapter or there twice", h.Name)
		}
		seen[h.Name] = true
		if err := saveFile(filepath.Join(dir, h.Name), in, picture); err != nil {
			return err
		}
	}
	for _, name := range adapterFiles[:2] {
		if !seen[name] {
			return fmt.Errorf("the server sent no %s", name)
		}
	}
	if e.names != plugins.ExportPEFT {
		return nil
	}
	return merge.UsePEFTNames(ctx, dir)
}

// saveFile makes a file and has it on disk when it returns.
func saveFile(path string, content io.Reader, bar io.Writer) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.MultiWriter(f, bar), content)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return nil
}

// merge writes the merged model. Files that the server gives are those that it serves; a directory of the user's is compared with what the adapter was trained on.
func (e *exporting) merge(ctx context.Context, dir, base string, o merge.Options) error {
	o.Base = &modelDirectory{e.connection, e.model}
	if base != "" {
		if e.hash == "" {
			return errors.New("--base: the server does not say on which base model the adapter was trained, so yours cannot be compared with it; leave --base out, and its files come from the server")
		}
		o.Base, o.BaseHash = merge.Directory(base), e.hash
	}
	plan, err := merge.Prepare(ctx, o)
	if err != nil {
		return err
	}
	picture := bar(plan.Bytes, "merging")
	defer picture.Finish() //nolint:errcheck // only a picture
	return plan.Write(ctx, dir, func(n int) { _ = picture.Add(n) })
}

// warnOfSharedHead says what must not be done with an adapter of a head that shares the embedding's weights: other programs' merging would change the embedding too.
func (e *exporting) warnOfSharedHead(ctx context.Context, dir string) error {
	head, err := merge.HasHead(ctx, dir)
	if err != nil || !head {
		return err
	}
	shared, err := merge.SharesHead(ctx, &modelDirectory{e.connection, e.model})
	if err != nil {
		return err
	}
	if shared {
		fmt.Fprintln(e.messages, "note: the output head of this model shares its weights with the embedding, and the adapter is on the head. PEFT loads it rightly; its merge_and_unload "+
			"would change the embedding too. Use tinsmith export --merge, or train with train_unembed=False.")
	}
	return nil
}

// modelDirectory is the directory of a model that a server serves.
type modelDirectory struct {
	conn *connection
	name string
}

func (m *modelDirectory) path(file string) string {
	query := url.Values{"model": {m.name}}
	if file != "" {
		query.Set("file", file)
	}
	return "/api/v1/tinsmith/models/files?" + query.Encode()
}

// Files implements merge.Source.
func (m *modelDirectory) Files(ctx context.Context) ([]merge.File, error) {
	var answer struct {
		Files []struct {
			Name string `json:"name"`
			Size int64  `json:"size"`
		} `json:"files"`
	}
	if err := m.conn.call(ctx, http.MethodGet, m.path(""), nil, &answer); err != nil {
		return nil, err
	}
	files := make([]merge.File, len(answer.Files))
	configured := false
	for i, f := range answer.Files {
		files[i] = merge.File{Name: f.Name, Size: f.Size}
		configured = configured || f.Name == "config.json"
	}
	if !configured {
		return nil, fmt.Errorf("the server gives out no config.json of %s: links that lead out of a model's directory are not followed; use a directory of your own with --base", m.name)
	}
	return files, nil
}

// Open implements merge.Source.
func (m *modelDirectory) Open(ctx context.Context, file string, offset, length int64) (io.ReadCloser, error) {
	if length == 0 {
		return io.NopCloser(strings.NewReader("")), nil
	}
	res, err := m.conn.open(ctx, m.path(file), fmt.Sprintf("bytes=%d-%d", offset, offset+length-1))
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusPartialContent {
		res.Body.Close()
		return nil, fmt.Errorf("the server sent the whole of %s where a part was asked for", file)
	}
	return res.Body, nil
}
