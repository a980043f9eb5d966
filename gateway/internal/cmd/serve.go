package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/tinsmith/tinsmith/gateway/internal/attach"
	"github.com/tinsmith/tinsmith/gateway/internal/backup"
	"github.com/tinsmith/tinsmith/gateway/internal/bucket"
	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/durable"
	"github.com/tinsmith/tinsmith/gateway/internal/fleet"
	"github.com/tinsmith/tinsmith/gateway/internal/hub"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/gateway/internal/page"
	"github.com/tinsmith/tinsmith/gateway/internal/podrole"
	"github.com/tinsmith/tinsmith/gateway/internal/redact"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/server"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/gateway/internal/telemetry"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker"
)

const (
	tokenLifetime = time.Hour        // of the tokens that keys are exchanged for
	closeTimeout  = 20 * time.Second // for work in flight when the server ends
	retryStore    = time.Second      // between two attempts to open the store
)

func serveCommand(p Program) *cobra.Command {
	var configFile, model, listen, dataDir string
	var aliases []string
	c := &cobra.Command{Use: "serve", Short: "Start the server", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error {
		cfg, err := serveConfig(configFile, model, listen, aliases...)
		if err != nil {
			return err
		}
		if dataDir != "" {
			cfg.DataDir = dataDir
		}
		return p.serve(c.Context(), cfg)
	}}
	c.Flags().StringVar(&configFile, "config", "", "configuration file")
	c.Flags().StringVar(&model, "model", "", "serve one model without a configuration file: a directory, a name in the Hugging Face cache, or hf://org/name[@revision]")
	c.Flags().StringVar(&listen, "listen", "", "address instead of the configured one")
	c.Flags().StringVar(&dataDir, "data-dir", "", "folder of records and checkpoints instead of the configured one")
	c.Flags().StringArrayVar(&aliases, "alias", nil, "a further name for the model, where there is one only; may be given several times")
	c.MarkFlagsOneRequired("config", "model")
	c.MarkFlagsMutuallyExclusive("config", "model")
	return c
}

// serveConfig reads the file, or makes a configuration for one model. Aliases are for the only model.
func serveConfig(file, model, listen string, aliases ...string) (config.Config, error) {
	var cfg config.Config
	var err error
	if file != "" {
		cfg, err = config.LoadUnchecked(file)
	} else {
		cfg = config.Default()
		m := config.DefaultModel()
		m.Path = model
		m.Name = strings.TrimPrefix(model, "hf://")
		m.Name, _, _ = strings.Cut(m.Name, "@")
		// What can only be a path is named after its folder, also where there is none: then the error is that.
		if info, statErr := os.Stat(model); filepath.IsAbs(model) || strings.HasPrefix(model, ".") || statErr == nil && info.IsDir() {
			var abs string
			if abs, err = filepath.Abs(model); err == nil {
				m.Name = filepath.Base(abs)
			}
		}
		cfg.Models = []config.Model{m}
	}
	if err != nil {
		return cfg, err
	}
	if listen != "" {
		cfg.Listen = listen
	}
	if len(aliases) > 0 {
		if len(cfg.Models) != 1 {
			return cfg, fmt.Errorf("--alias: %s has %d models; write the aliases beside the model that they are for", file, len(cfg.Models))
		}
		cfg.AddAliases(aliases)
	}
	if err := cfg.Validate(); err != nil {
		if file == "" {
			file = "--model " + model
		}
		return cfg, fmt.Errorf("%s: %w", file, err)
	}
	return cfg, nil
}

// outliveReaders has writes to standard output and error fail when nobody reads them any more (tee has ended, say), where Go would end the process, without a word.
func outliveReaders() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// serve runs until ctx ends.
func (p Program) serve(ctx context.Context, cfg config.Config) (err error) {
	outliveReaders()
	unix.Umask(0o077) // what tenants leave here is for nobody else on this machine, whatever the modes say that files are made with
	setLog(cfg.Log)
	defer logEnd(ctx)()
	if err := absolute(&cfg); err != nil {
		return err
	}
	ring, err := keys.Open(cfg.Auth.KeysFile)
	if err != nil {
		return err
	}
	tel, err := telemetry.Start(ctx, p.Version)
	if err != nil {
		return err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, tel.Stop(stop))
	}()

	meter := server.NewMeter()
	if err := tel.Registry.Register(meter); err != nil {
		return fmt.Errorf("register the metrics of requests: %w", err)
	}
	pod, err := podrole.Open()
	if err != nil {
		return err
	}
	pod.Become(ctx, podrole.Standby) // until it serves
	h := &health{version: p.Version, models: cfg.Models, opened: func() { pod.Become(ctx, podrole.Active) }}
	var certificate *server.Certificate
	if cfg.TLS.Used() {
		if certificate, err = server.OpenCertificate(cfg.TLS.CertFile, cfg.TLS.KeyFile); err != nil {
			return err
		}
		if end := certificate.Expires(); time.Now().After(end) {
			slog.WarnContext(ctx, "the certificate of tls.cert_file has expired", "at", end)
		}
	}
	listener, err := server.Listen(ctx, cfg.Listen, cfg.TLS.Scheme())
	if err != nil {
		return err
	}
	options := server.Options{Version: p.Version, Health: h.get, Metrics: tel.Handler, Meter: meter, Traces: tel.Traces, Keyless: !ring.Required(), PublicURL: cfg.PublicURL, Origins: cfg.CORSOrigins}
	options.Admin = func(r *http.Request) bool { return ring.Admin(keys.Credential(r.Header)) }
	starting := options
	starting.Starting = h.starting
	front := server.NewSwitch(server.New(starting))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() { defer cancel(); served <- server.Serve(ctx, listener, certificate, front) }()

	err = p.serveStore(ctx, cfg, ring, options, h, front, listener.Addr())
	cancel()
	serveErr := <-served
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, serveErr)
}

// logEnd logs when ctx ends, and, when what it gives is called after that, that the server has ended.
func logEnd(ctx context.Context) (ended func()) {
	begun := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(begun)
		slog.InfoContext(ctx, "the server is ending", "signal", context.Cause(ctx))
	})
	return func() {
		if !stop() {
			<-begun
			slog.InfoContext(ctx, "the server has ended", "signal", context.Cause(ctx))
		}
	}
}

// serveStore waits for the data directory and, where other gateways share the database, for this one's turn, and serves what is there. options lack the routes. While it waits for its turn it has the models loaded.
func (p Program) serveStore(ctx context.Context, cfg config.Config, ring *keys.Ring, options server.Options, h *health, front *server.Switch, address net.Addr) (err error) {
	again := catchReloads() // also of a standby, which takes them up when it serves
	defer again.stop()
	var turn turn
	var up *backends
	if cfg.Files.Shared() {
		defer func() { err = errors.Join(err, turn.end()) }()
		if turn.lock, err = holdDataDir(ctx, cfg, h, address); err != nil {
			return err
		}
		if turn.bucket, err = openBucket(ctx, cfg, h); err != nil {
			return err
		}
		if up, err = p.startBackends(ctx, cfg, h); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, up.close()) }()
		if turn.lease, err = awaitTurn(ctx, cfg, h); err != nil {
			return err
		}
	}
	records, secret, err := awaitStore(ctx, cfg, turn, h, address)
	if err != nil {
		return err
	}
	if up != nil && turn.bucket != nil {
		records, up.bucket = turn.bucket.Store(records), turn.bucket
		h.setStore(records, nil)
	}
	if p.DecorateStore != nil {
		records = p.DecorateStore(records)
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	if up == nil {
		if up, err = p.startBackends(ctx, cfg, h); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, up.close()) }()
	}
	if err := beginLeases(ctx, up.leases, records); err != nil {
		return err
	}
	auth := &keys.Authenticator{Ring: ring, Tokens: keys.Tokens{Secret: secret, Lifetime: tokenLifetime}, Redactor: up.redactor}
	options.Admin = func(r *http.Request) bool { return auth.Admin(keys.Credential(r.Header)) }
	return p.serveModels(ctx, cfg, again, auth, records, up, options, h, front, localURL(cfg.TLS.Scheme(), address))
}

// awaitStore opens the data directory. What may pass (another process that has it, a full disk, a database that is not up) is waited for and told in /healthz.
func awaitStore(ctx context.Context, cfg config.Config, turn turn, h *health, address net.Addr) (store.Store, []byte, error) {
	for waited := store.State(""); ; {
		records, secret, err := openData(ctx, cfg, turn, address)
		if err == nil {
			h.setStore(records, nil)
			return records, secret, nil
		}
		trouble := store.TroubleOf(err)
		if trouble == nil || ctx.Err() != nil {
			return nil, nil, err
		}
		h.setStore(nil, trouble)
		if trouble.State != waited {
			waited = trouble.State
			slog.WarnContext(ctx, "waiting for the data directory", "state", trouble.State, "error", err)
			if trouble.State == store.Locked {
				fmt.Fprintln(os.Stderr, besideAnother(cfg.DataDir))
			}
		}
		select {
		case <-time.After(retryStore):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// besideAnother says what can be done where another server has the data directory.
func besideAnother(dataDir string) string {
	where := ""
	if address := server.Address(dataDir); address != "" {
		where = " on " + address
	}
	return fmt.Sprintf("another server%s uses %s, or the database that it keeps its records in: use that one, or stop it and this one goes on; "+
		"to run both, give this one a folder of its own with --data-dir DIR or data_dir in the configuration", where, dataDir)
}

// openData opens the store, and with it the data directory is this process's: it leaves its address there and takes the secret that signs tokens. What is shared is elsewhere.
func openData(ctx context.Context, cfg config.Config, turn turn, address net.Addr) (store.Store, []byte, error) {
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("data_dir: %w", err)
	}
	if backup.Unfinished(cfg.DataDir) {
		return nil, nil, unfinishedRestore(cfg.DataDir)
	}
	records, err := openStore(ctx, cfg, turn)
	if err != nil {
		return nil, nil, err
	}
	if cfg.Files.Shared() {
		err = bindFiles(ctx, records, filesOf(cfg, turn.bucket), false)
		var secret []byte
		if err == nil {
			secret, err = sharedSecret(ctx, records)
		}
		if err != nil {
			return nil, nil, errors.Join(err, records.Close())
		}
		return records, secret, nil
	}
	closeToOthers(ctx, cfg.DataDir)
	err = server.WriteAddress(cfg.TLS.Scheme(), address, cfg.DataDir)
	if err != nil {
		return nil, nil, errors.Join(err, records.Close())
	}
	secretFile := filepath.Join(cfg.DataDir, "token-secret")
	if err := durable.RemoveUnfinished(secretFile); err != nil {
		slog.WarnContext(ctx, "what a killed process has left could not be removed", "error", err)
	}
	secret, err := loadSecret(ctx, secretFile)
	if err != nil {
		return nil, nil, errors.Join(err, records.Close())
	}
	return records, secret, nil
}

// closeToOthers takes the data directory away from other users of the machine: earlier versions made it for everybody to read. What cannot be changed, as that of a directory that somebody else has made, is
// told in the log.
func closeToOthers(ctx context.Context, dir string) {
	const others = 0o077
	var st unix.Stat_t
	err := unix.Stat(dir, &st)
	if err == nil && st.Mode&others == 0 {
		return
	}
	if err == nil && int(st.Uid) == os.Geteuid() {
		if err = os.Chmod(dir, os.FileMode(st.Mode&0o700)); err == nil {
			slog.InfoContext(ctx, "data_dir could be read by other users of this machine and is now its owner's only", "data_dir", dir, "mode_before", fmt.Sprintf("%#o", st.Mode&0o777))
			return
		}
	}
	slog.WarnContext(ctx, "data_dir can be read by other users of this machine", "data_dir", dir, "mode", fmt.Sprintf("%#o", st.Mode&0o777), "error", err)
}

// backends are the models and what computes them.
type backends struct {
	*fleet.Fleet
	models   []*catalog.Model
	leases   *attach.Leases // see remoteLeases
	bucket   *bucket.Bucket // of the files, or nil
	redactor *redact.Redactor
	close    func() error
}

// startBackends loads the models. It needs nothing that is stored.
func (p Program) startBackends(ctx context.Context, cfg config.Config, h *health) (*backends, error) {
	models, err := loadCatalog(ctx, cfg, h)
	if err != nil {
		return nil, err
	}
	programs, err := pluginDir()
	if err != nil {
		return nil, err
	}
	up := &backends{models: models, leases: remoteLeases(cfg)}
	if up.redactor, err = redactor(cfg, models, programs); err != nil {
		return nil, err
	}
	up.Fleet, err = fleet.New(fleet.Config{
		Models: models, PluginDir: programs, DataDir: cfg.DataDir, Reserve: int64(cfg.Store.ReserveMiB) << 20, ProgressTimeout: cfg.Backends.ProgressTimeout, Leases: up.leases,
	})
	if err != nil {
		return nil, err
	}
	unregister, err := up.RegisterMetrics()
	if err != nil {
		return nil, err
	}
	h.setFleet(up.Fleet)
	// The processes end by Close, after the core that uses them: what they are doing then is in the journal, for those of the next start.
	up.Start(context.WithoutCancel(ctx))
	up.close = func() error { up.Close(); return unregister() }
	go showLoading(ctx, up.Fleet)
	return up, nil
}

// serveModels opens the APIs, and waits for the end of ctx.
func (p Program) serveModels(ctx context.Context, cfg config.Config, again *reloads, auth *keys.Authenticator, records store.Store, up *backends, options server.Options, h *health, front *server.Switch, url string) (err error) {
	models, backends := up.models, up.Fleet
	served, directories := make([]runs.Model, len(models)), map[string]string{}
	for i, m := range models {
		served[i], directories[m.Name] = m.Served(), m.Dir
	}
	var source runs.Backends = backends
	if p.DecorateBackends != nil {
		source = p.DecorateBackends(source)
	}
	var elsewhere runs.Elsewhere
	var copies backup.Folder
	if up.bucket != nil {
		elsewhere, copies = up.bucket, up.bucket
	}
	core, err := runs.Open(ctx, runs.Config{
		Elsewhere: elsewhere,
		Store:     records, DataDir: cfg.FilesDir(), Models: served, Backends: source,
		SessionExpiry: cfg.Sessions.ExpireAfter, GapWait: cfg.Training.GapWait, MaxQueuedSamples: cfg.Sampling.MaxWaiting,
		MaxUnnamedBytes: unnamedBytes(&cfg),
		PointEvery:      cfg.Recovery.SnapshotEvery, PointOperations: cfg.Recovery.SnapshotOperations, DiskShare: cfg.Recovery.DiskShare,
		MaxSessions: cfg.Sessions.MaxActive, MaxSessionBytes: int64(cfg.Sessions.MaxMemoryMiB) << 20,
		SessionsKept: days(cfg.Records.SessionDays), AuditKept: days(cfg.Records.AuditDays), UsageByHour: days(cfg.Records.UsageDays), ResponsesKept: cfg.OpenAI.ResponsesKeep,
		Refuse: backends.Refuse, Failed: backends.Failed, Idle: backends.Idle, Explained: backends.Forgive, Status: backends.Status, Weights: cfg.Scheduling.Weights, Limits: limitTable(cfg.Limits), SharePrefixes: cfg.Sampling.SharePrefixes == "all",
	})
	if err != nil {
		return err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, core.Close(stop))
	}()
	go again.serve(ctx, cfg, configurable{backends, core})
	h.setRuns(core.Rebuilding, core.BackendInfos)
	backends.Observe(core.DevicesChanged)
	stopControl := serveControl(ctx, backup.Source{Version: p.Version, DataDir: cfg.DataDir, FilesDir: cfg.FilesDir(), Folders: copies, Store: records, Hold: core.HoldDeletions})
	defer stopControl()
	tinkerAPI, err := tinker.New(core, auth, tinker.Options{PublicURL: cfg.PublicURL, MaxPerClient: cfg.Sampling.MaxPerClient, Directories: directories, ClientFiles: filepath.Join(cfg.DataDir, "huggingface")})
	if err != nil {
		return err
	}
	answers, err := inference.New(core, auth, models)
	if err != nil {
		return err
	}
	options.Routes = append([]func(gin.IRouter){page.Register, tinkerAPI.Register}, surfaces(answers)...)
	front.Set(server.New(options))
	h.setOpen()
	failed := make(chan error, 1)
	go func() {
		if err := announceReady(ctx, core, models, url, auth.Ring.Required()); err != nil && cfg.File == "" {
			failed <- err
		}
	}()
	select {
	case <-ctx.Done():
	case err = <-failed: // of the one model that was asked for: there is nothing else to serve
	}
	front.Drain()
	return err
}

func days(n int) time.Duration { return time.Duration(n) * 24 * time.Hour }

// serveControl answers to `tinsmith backup` until the function that it gives is called. Without it everything else goes on.
func serveControl(ctx context.Context, src backup.Source) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := backup.Serve(ctx, src); err != nil {
			slog.WarnContext(ctx, "the server does not answer to tinsmith backup", "error", err)
		}
	}()
	return func() { cancel(); <-ended }
}

// localURL is the server's address for programs on this machine: an address that means every interface is no place to connect to.
func localURL(scheme string, a net.Addr) string {
	if tcp, ok := a.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		return scheme + "://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(tcp.Port))
	}
	return scheme + "://" + a.String()
}

// announceReady waits for the models, prints how each shares its memory out, and, when the first that can be served is ready, what a user needs next. The error says why none can be served.
func announceReady(ctx context.Context, core *runs.Core, models []*catalog.Model, url string, keyRequired bool) error {
	var failures []error
	announced := false
	for _, m := range models {
		info, err := core.ModelInfo(ctx, m.Name)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the server is ending: the model has not failed
		}
		if err != nil {
			failures = append(failures, err)
			slog.ErrorContext(ctx, "model is not served", "model", m.Name, "error", err)
			continue
		}
		_ = writeMemory(os.Stderr, m.Name, info.Memory) // only for people to read
		slog.InfoContext(ctx, "model ready", "model", m.Name, "parameters", info.Parameters, "device", info.Device, "dtype", info.DType, "context", info.MaxContextLength)
		if !announced {
			announced = true
			writeNextSteps(os.Stderr, m, url, keyRequired)
		}
	}
	if announced {
		return nil
	}
	return errors.Join(failures...)
}

// writeNextSteps tells how a model is used.
func writeNextSteps(w io.Writer, m *catalog.Model, url string, keyRequired bool) {
	key, header := "tml-local", ""
	if keyRequired {
		key = "tml-YOUR-KEY"
		header = ` -H "Authorization: Bearer ` + key + `"`
	}
	path, body := "/v1/chat/completions", `"messages": [{"role": "user", "content": "What is 2 + 3?"}]`
	if m.Template == nil {
		path, body = "/v1/completions", `"prompt": "Once upon a time", "max_tokens": 32`
	}
	fmt.Fprintf(w, `
ready. What you need next:
  a browser    %[1]s   runs with their curves, chat, the device
  a shell      eval "$(%[7]s env --url %[1]s)"   sets everything for the SDKs and the Tinker cookbook
  Tinker SDK   TINKER_BASE_URL=%[1]s TINKER_API_KEY=%[2]s python -c 'import tinker; print(tinker.ServiceClient().get_server_capabilities())'
  OpenAI SDK   OPENAI_BASE_URL=%[1]s/v1 OPENAI_API_KEY=%[2]s   model: %[3]s
  curl         curl %[1]s%[5]s%[4]s -H "Content-Type: application/json" -d '{"model": "%[3]s", %[6]s}'

`, url, key, m.Name, header, path, body, os.Args[0])
}

// loadCatalog finds or downloads the model directories and reads tokenizers and templates. A model of which that fails has the error; if it fails for all, that is an error.
func loadCatalog(ctx context.Context, cfg config.Config, h *health) ([]*catalog.Model, error) {
	var models []*catalog.Model
	var failures []error
	for i, m := range cfg.Models {
		one, err := loadModel(ctx, cfg, i, h)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			failures = append(failures, err)
			slog.ErrorContext(ctx, "model is not served", "model", m.Name, "error", err)
			one = &catalog.Model{Model: m, Err: err}
		}
		models = append(models, one)
	}
	if len(failures) == len(models) {
		return nil, errors.Join(failures...)
	}
	return models, nil
}

// loadModel is loadCatalog for one model.
func loadModel(ctx context.Context, cfg config.Config, i int, h *health) (*catalog.Model, error) {
	m := cfg.Models[i]
	var bar *progressbar.ProgressBar
	find := hub.Resolve
	if m.Remote != nil { // its weights are on the backend's machine
		find = hub.ResolveWithoutWeights
	}
	dir, err := find(ctx, m.Path, func(done, total int64) {
		h.setDownload(i, done, total)
		if bar == nil && term.IsTerminal(int(os.Stderr.Fd())) {
			bar = progressbar.DefaultBytes(total, "downloading "+m.Name)
		}
		if bar != nil {
			_ = bar.Set64(done) // only a picture
		}
	})
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", m.Name, err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if m.TokenizerID == "" && cfg.Auth.KeysFile == "" {
		m.TokenizerID = dir // clients run on this machine, so they can read the tokenizer where it is
	}
	return catalog.Load(m, dir)
}

// pluginDir is `plugins` beside this program.
func pluginDir() (string, error) {
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the plugins: %w", err)
	}
	if program, err = filepath.EvalSymlinks(program); err != nil {
		return "", fmt.Errorf("find the plugins: %w", err)
	}
	return filepath.Join(filepath.Dir(program), "plugins"), nil
}

// redactor knows what only administrators are to know of this server.
func redactor(cfg config.Config, models []*catalog.Model, programs string) (*redact.Redactor, error) {
	databaseURL, err := postgresURL(cfg)
	if err != nil {
		return nil, err
	}
	secrets := redact.Secrets{Paths: []string{cfg.DataDir, cfg.FilesDir(), programs}, Words: redact.PostgresWords(databaseURL)}
	hidden := []string{cfg.File, cfg.Auth.KeysFile, cfg.Store.URLFile}
	if s := cfg.Files.S3; s != nil {
		access, secret, err := bucketKeys(s.KeyFile)
		if err != nil {
			return nil, err
		}
		hidden = append(hidden, s.KeyFile, s.CAFile)
		secrets.Words = append(secrets.Words, access, secret, s.Endpoint, strings.TrimPrefix(strings.TrimPrefix(s.Endpoint, "https://"), "http://"))
	}
	for _, file := range hidden {
		if file == "" {
			continue
		}
		if file, err = filepath.Abs(file); err != nil {
			return nil, err
		}
		secrets.Paths = append(secrets.Paths, file)
	}
	for _, m := range models {
		secrets.Paths = append(secrets.Paths, m.Dir, m.Path)
		for _, b := range m.Members() {
			r := b.Remote
			if r == nil {
				continue
			}
			secrets.Paths = append(secrets.Paths, r.Model, r.TLS.CertFile, r.TLS.KeyFile, r.TLS.CAFile)
			secrets.Words = append(secrets.Words, r.Address)
			if host, _, err := net.SplitHostPort(r.Address); err == nil {
				secrets.Words = append(secrets.Words, host)
			}
		}
	}
	return redact.New(secrets), nil
}

// postgresURL is the address of the database, "" with another driver.
func postgresURL(cfg config.Config) (string, error) {
	if cfg.Store.Driver != "postgres" {
		return "", nil
	}
	b, err := os.ReadFile(cfg.Store.URLFile)
	if err != nil {
		return "", fmt.Errorf("store.url_file: %w", err)
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	return first, nil
}

func openStore(ctx context.Context, cfg config.Config, turn turn) (store.Store, error) {
	options, err := storeOptions(cfg)
	if err != nil {
		return nil, err
	}
	options.Lock, options.Lease = turn.lock, turn.lease
	return store.Open(ctx, options)
}

func setLog(l config.Log) {
	var level slog.Level
	_ = level.UnmarshalText([]byte(l.Level)) // validated
	options := &slog.HandlerOptions{Level: level}
	var h slog.Handler = slog.NewTextHandler(os.Stderr, options)
	if l.Format == "json" {
		h = slog.NewJSONHandler(os.Stderr, options)
	}
	slog.SetDefault(slog.New(h))
}
