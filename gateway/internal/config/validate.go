package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/answer"
)

var (
	modelName  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,199}$`)
	pluginName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,63}$`)
)

const (
	maxReserveMiB      = 1 << 20
	maxRecordDays      = 36500
	minWeight          = 1e-3 // with less the sums of shares lose their digits, and the key hardly ever has a turn
	maxOrigins         = 100
	maxWeight          = 1e6
	maxUnnamedMiB      = 1 << 40
	minProgressTimeout = 2 * time.Second // a backend reports once a second
)

// Validate checks values that are of the right type. The error names the key.
func (c *Config) Validate() error {
	if err := c.validateListen(); err != nil {
		return err
	}
	if c.PublicURL != "" {
		u, err := url.Parse(c.PublicURL)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return fmt.Errorf("public_url: %q is not an http or https URL", c.PublicURL)
		}
	}
	if err := c.validateOrigins(); err != nil {
		return err
	}
	if c.DataDir == "" {
		return errors.New("data_dir: must not be empty")
	}
	if !slices.Contains([]string{"sqlite", "postgres"}, c.Store.Driver) {
		return fmt.Errorf("store.driver: %q is not one of sqlite, postgres", c.Store.Driver)
	}
	if (c.Store.Driver == "postgres") != (c.Store.URLFile != "") {
		return errors.New("store.url_file: required with store.driver postgres, and only with it")
	}
	if c.Store.ReserveMiB < 0 || c.Store.ReserveMiB > maxReserveMiB {
		return fmt.Errorf("store.reserve_mib: %d is not between 0 and %d", c.Store.ReserveMiB, maxReserveMiB)
	}
	if err := c.validateFiles(); err != nil {
		return err
	}
	if c.Backends.ProgressTimeout < minProgressTimeout {
		return fmt.Errorf("backends.progress_timeout: %s is less than %s", c.Backends.ProgressTimeout, minProgressTimeout)
	}
	if c.Sessions.ExpireAfter < 2*time.Minute {
		return fmt.Errorf("sessions.expire_after: %s is less than 2m (a busy Python client can be silent for tens of seconds)", c.Sessions.ExpireAfter)
	}
	if c.Sessions.MaxActive < 1 {
		return fmt.Errorf("sessions.max_active: %d is less than 1", c.Sessions.MaxActive)
	}
	if c.Sessions.MaxMemoryMiB < 1 || c.Sessions.MaxMemoryMiB > maxReserveMiB {
		return fmt.Errorf("sessions.max_memory_mib: %d is not between 1 and %d", c.Sessions.MaxMemoryMiB, maxReserveMiB)
	}
	for _, r := range []struct {
		key  string
		days int
	}{{"session_days", c.Records.SessionDays}, {"audit_days", c.Records.AuditDays}, {"usage_days", c.Records.UsageDays}} {
		if r.days < 0 || r.days > maxRecordDays {
			return fmt.Errorf("records.%s: %d is not between 0 (for ever) and %d", r.key, r.days, maxRecordDays)
		}
	}
	if c.Training.GapWait < 0 || c.Training.GapWait > 5*time.Minute {
		return fmt.Errorf("training.gap_wait: %s is not between 0s and 5m", c.Training.GapWait)
	}
	if c.Recovery.SnapshotEvery < time.Second {
		return fmt.Errorf("recovery.snapshot_every: %s is less than 1s", c.Recovery.SnapshotEvery)
	}
	if c.Recovery.SnapshotOperations < 1 {
		return fmt.Errorf("recovery.snapshot_operations: %d is less than 1", c.Recovery.SnapshotOperations)
	}
	if !(c.Recovery.DiskShare > 0 && c.Recovery.DiskShare <= 1) {
		return fmt.Errorf("recovery.disk_share: %v is not above 0 and at most 1", c.Recovery.DiskShare)
	}
	if c.Sampling.MaxWaiting < 1 {
		return fmt.Errorf("sampling.max_waiting: %d is less than 1", c.Sampling.MaxWaiting)
	}
	if c.Sampling.MaxPerClient < 1 {
		return fmt.Errorf("sampling.max_per_client: %d is less than 1", c.Sampling.MaxPerClient)
	}
	if c.Sampling.UnnamedMiB < 0 || c.Sampling.UnnamedMiB > maxUnnamedMiB {
		return fmt.Errorf("sampling.unnamed_mib: %d is not from 0 to %d", c.Sampling.UnnamedMiB, maxUnnamedMiB)
	}
	if !slices.Contains([]string{"keys", "all"}, c.Sampling.SharePrefixes) {
		return fmt.Errorf("sampling.share_prefixes: %q is not one of keys, all", c.Sampling.SharePrefixes)
	}
	if c.OpenAI.ResponsesKeep < 0 || c.OpenAI.ResponsesKeep > maxRecordDays*24*time.Hour {
		return fmt.Errorf("openai.responses_keep: %s is not between 0s (never stored) and %d days", c.OpenAI.ResponsesKeep, maxRecordDays)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Scheduling.Weights)) {
		if weight := c.Scheduling.Weights[name]; !(weight >= minWeight && weight <= maxWeight) {
			return fmt.Errorf("scheduling.weights.%s: %v is not from %v to %v", name, weight, minWeight, maxWeight)
		}
	}
	if err := c.Limits.validate(); err != nil {
		return err
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		return errors.New("tls: cert_file and key_file are required together")
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level) {
		return fmt.Errorf("log.level: %q is not one of debug, info, warn, error", c.Log.Level)
	}
	if !slices.Contains([]string{"text", "json"}, c.Log.Format) {
		return fmt.Errorf("log.format: %q is not one of text, json", c.Log.Format)
	}
	return c.validateModels()
}

// Of a lease that is shorter a pause of the machine is taken for the end of it.
const (
	minLease = 500 * time.Millisecond
	maxLease = 10 * time.Minute
)

// validateFiles checks what several gateways share.
func (c *Config) validateFiles() error {
	if !c.Files.Shared() {
		if c.Store.Lease != 0 {
			return errors.New("store.lease: only with files: it is how long other gateways wait before they take over")
		}
		return nil
	}
	if c.Store.Driver != "postgres" {
		return fmt.Errorf("files: only with store.driver postgres, which is %q: records and files are shared together", c.Store.Driver)
	}
	if c.Store.Lease != 0 && (c.Store.Lease < minLease || c.Store.Lease > maxLease) {
		return fmt.Errorf("store.lease: %s is not between %s and %s", c.Store.Lease, minLease, maxLease)
	}
	if s := c.Files.S3; s != nil {
		if c.Files.Dir != "" {
			return errors.New("files: dir and s3 are two ways to the same: one of them")
		}
		return s.validate()
	}
	data, err := filepath.Abs(c.DataDir)
	if err != nil {
		return fmt.Errorf("data_dir: %w", err)
	}
	files, err := filepath.Abs(c.Files.Dir)
	if err != nil {
		return fmt.Errorf("files.dir: %w", err)
	}
	for _, pair := range [][2]string{{data, files}, {files, data}} {
		if rel, err := filepath.Rel(pair[0], pair[1]); err == nil && filepath.IsLocal(rel) {
			return fmt.Errorf("files.dir: %s and data_dir %s must not lie in each other: data_dir is of one gateway alone", c.Files.Dir, c.DataDir)
		}
	}
	return nil
}

var (
	bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	prefixName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9_./-]{0,199}$`)
)

func (s *S3) validate() error {
	u, err := url.Parse(s.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.User != nil || u.RawQuery != "" {
		return fmt.Errorf("files.s3.endpoint: %q is not https://HOST[:PORT] or http://HOST[:PORT]", s.Endpoint)
	}
	if !bucketName.MatchString(s.Bucket) {
		return fmt.Errorf("files.s3.bucket: %q is no name of a bucket", s.Bucket)
	}
	if s.Prefix != "" && (!prefixName.MatchString(s.Prefix) || !filepath.IsLocal(s.Prefix) || filepath.Clean(s.Prefix) != s.Prefix) {
		return fmt.Errorf("files.s3.prefix: %q is no path of letters, digits and - _ . without a slash at its ends", s.Prefix)
	}
	if s.KeyFile == "" {
		return errors.New("files.s3.key_file: required: a file with the access key and, in the second line, the secret key")
	}
	if s.CAFile != "" && u.Scheme != "https" {
		return errors.New("files.s3.ca_file: only with an https endpoint")
	}
	if s.CacheMiB < 0 || s.CacheMiB > maxCacheMiB {
		return fmt.Errorf("files.s3.cache_mib: %d is not between 0 (10240) and %d", s.CacheMiB, maxCacheMiB)
	}
	return nil
}

// maxCacheMiB is a petabyte.
const maxCacheMiB = 1 << 30

// maxLimit is more than anybody has of anything that is limited, and small enough for bytes to be counted.
const maxLimit = 1 << 40

func (l *Limits) validate() error {
	check := func(at string, limit Limit) error {
		for _, v := range []struct {
			key   string
			value *int
		}{{"runs", limit.Runs}, {"samples", limit.Samples}, {"trained_tokens_per_minute", limit.TrainedTokens}, {"sampled_tokens_per_minute", limit.SampledTokens}, {"checkpoint_mib", limit.CheckpointMiB},
			{"metric_values", limit.MetricValues}} {
			if v.value != nil && (*v.value < 0 || *v.value > maxLimit) {
				return fmt.Errorf("limits.%s.%s: %d is not between 0 (no limit) and %d", at, v.key, *v.value, maxLimit)
			}
		}
		return nil
	}
	if err := check("default", l.Default); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(l.Keys)) {
		if err := check("keys."+name, l.Keys[name]); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) validateListen() error {
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %q is not host:port", c.Listen)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("listen: %q is not a port between 0 and 65535", port)
	}
	if c.Auth.KeysFile == "" && !Loopback(host) {
		return fmt.Errorf("listen: %q can be reached from other machines, but no keys are set: make one with `tinsmith key add NAME` and set auth.keys_file, or listen on 127.0.0.1", c.Listen)
	}
	return nil
}

// originHost is a host as browsers write it in an origin, a name with other letters in its xn-- form, and maybe a port. A star in it would match nothing.
var originHost = regexp.MustCompile(`^(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[1-9][0-9]{0,4})?$`)

// validateOrigins wants them as browsers send them, since they are compared so.
func (c *Config) validateOrigins() error {
	if len(c.CORSOrigins) > 0 && c.Auth.KeysFile == "" {
		return errors.New("cors_origins: needs auth.keys_file: without keys pages of this machine and of public_url alone are answered, because whoever opens a page would lend it the server")
	}
	if len(c.CORSOrigins) > maxOrigins {
		return fmt.Errorf("cors_origins: has %d entries, at most %d are allowed", len(c.CORSOrigins), maxOrigins)
	}
	for i, origin := range c.CORSOrigins {
		u, err := url.Parse(origin)
		if origin == "*" || err == nil && u.Scheme != "" && originHost.MatchString(u.Host) && origin == u.Scheme+"://"+u.Host &&
			!(u.Scheme == "https" && u.Port() == "443") && !(u.Scheme == "http" && u.Port() == "80") {
			continue
		}
		return fmt.Errorf(`cors_origins[%d]: %q is not an origin as browsers send it: "*", or scheme and host in lower case and a port that is not the usual one, as https://app.example.org or http://10.0.0.5:3000`, i, origin)
	}
	return nil
}

// Loopback says whether a listen host can be reached from this machine only.
func Loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}

func (c *Config) validateModels() error {
	if len(c.Models) == 0 {
		return errors.New("models: at least one is required")
	}
	names, addresses := map[string]string{}, map[string]string{}
	for i, m := range c.Models {
		key := fmt.Sprintf("models[%d]", i)
		for j, name := range append([]string{m.Name}, m.Aliases...) {
			field := key + ".name"
			if j > 0 {
				field = fmt.Sprintf("%s.aliases[%d]", key, j-1)
			}
			if !modelName.MatchString(name) || strings.Contains(name, "//") {
				return fmt.Errorf("%s: %q is not a model name (letters, digits and ._/- only, at most 200)", field, name)
			}
			if other, taken := names[name]; taken {
				return fmt.Errorf("%s: %q is already the name of %s", field, name, other)
			}
			names[name] = key
		}
		if m.Path == "" {
			return fmt.Errorf("%s.path: must not be empty", key)
		}
		if !slices.Contains([]string{"base", "latest"}, m.Chat) {
			return fmt.Errorf("%s.chat: %q is not one of base, latest", key, m.Chat)
		}
		if m.ToolFormat != "" {
			if _, err := answer.ParseFormat(m.ToolFormat); err != nil {
				return fmt.Errorf("%s.tool_format: %w", key, err)
			}
		}
		if !slices.Contains([]string{"peft", "tinker"}, m.ExportNames) {
			return fmt.Errorf("%s.export_names: %q is not one of peft, tinker", key, m.ExportNames)
		}
		for j, b := range m.Members() {
			if err := b.validate(m.sectionKey(key, j), addresses); err != nil {
				return err
			}
		}
	}
	return nil
}
