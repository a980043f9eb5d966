// Package config reads the gateway's configuration: one YAML file, defaults in code, unknown keys refused with file, line and the nearest known
// key. Paths are relative to the file. A model's `backend:` section is not interpreted here: it is passed to the plugin as JSON, which validates
// it. Secrets are named by file path, never written into the configuration.
package config

import (
	"cmp"
	"encoding/json"
	"time"
)

// Config is the whole file. The zero value is not usable; Load and Default fill in defaults.
type Config struct {
	// Listen is the HTTP address, host:port; port 0 takes a free one.
	Listen string `yaml:"listen"`
	// PublicURL is the base URL under which clients reach the server, for absolute links in answers; empty: taken from each request.
	PublicURL string `yaml:"public_url"`
	// CORSOrigins are the origins, as https://host, of web pages elsewhere that may read the answers; "*" for all. Those of this machine and of PublicURL always may. Only with keys.
	CORSOrigins []string `yaml:"cors_origins"`
	// DataDir holds database, journal and checkpoints. One server uses it at a time.
	DataDir    string     `yaml:"data_dir"`
	Auth       Auth       `yaml:"auth"`
	TLS        TLS        `yaml:"tls"`
	Store      Store      `yaml:"store"`
	Files      Files      `yaml:"files"`
	Backends   Backends   `yaml:"backends"`
	Sessions   Sessions   `yaml:"sessions"`
	Records    Records    `yaml:"records"`
	Training   Training   `yaml:"training"`
	Recovery   Recovery   `yaml:"recovery"`
	Sampling   Sampling   `yaml:"sampling"`
	OpenAI     OpenAI     `yaml:"openai"`
	Scheduling Scheduling `yaml:"scheduling"`
	Limits     Limits     `yaml:"limits"`
	Log        Log        `yaml:"log"`
	Models     []Model    `yaml:"models"`

	// File is the path the configuration was read from, "" if none.
	File string `yaml:"-"`
	// Added are the aliases that the command line gave the only model, beside those of the file.
	Added []string `yaml:"-"`
}

// Auth says who may use the server.
type Auth struct {
	// KeysFile has a line "name sha256-hex" per key, with the word "admin" behind it for an administrator's, written by `tinsmith key add NAME`. Without it the server listens on loopback only and takes any key or none.
	KeysFile string `yaml:"keys_file"`
}

// TLS says with what the server proves who it is; without it it speaks plain HTTP.
type TLS struct {
	// CertFile has the server's certificate in PEM, and those between it and its authority; KeyFile its private key. Both are read again when they change.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
}

// Used tells whether the server speaks HTTPS.
func (t TLS) Used() bool { return t.CertFile != "" }

// Scheme is that of the server's address.
func (t TLS) Scheme() string {
	if t.Used() {
		return "https"
	}
	return "http"
}

// Store says where the state is kept.
type Store struct {
	// Driver is "sqlite" (a file in DataDir) or "postgres".
	Driver string `yaml:"driver"`
	// URLFile names a file whose first line is the PostgreSQL connection URL.
	URLFile string `yaml:"url_file"`
	// Lease is how long the gateway that serves may be silent before another takes over, where Files is used; 0 = 3 s.
	Lease time.Duration `yaml:"lease"`
	// ReserveMiB of the data directory's disk are kept for the results of accepted work: with less free, new work is refused. 0: no reserve.
	ReserveMiB int `yaml:"reserve_mib"`
}

// Files says where checkpoints, recovery points and the files of adapters are. Unset they are in DataDir. Set, nothing that a gateway needs to go on is in DataDir: several gateways may have the same database and the same files, and
// one of them serves while the others wait.
type Files struct {
	// Dir is a folder that every one of the gateways sees. It must exist.
	Dir string `yaml:"dir"`
	// S3 is a bucket in place of such a folder; DataDir has copies of what is in use.
	S3 *S3 `yaml:"s3"`
}

// S3 is a bucket of MinIO, Amazon S3 or anything else with that API.
type S3 struct {
	// Endpoint is https://HOST[:PORT], or http.
	Endpoint string `yaml:"endpoint"`
	// Bucket must exist. Objects have names that begin with Prefix.
	Bucket string `yaml:"bucket"`
	Prefix string `yaml:"prefix"`
	// Region is that of the bucket; empty: the server is asked.
	Region string `yaml:"region"`
	// KeyFile names a file whose first line is the access key, and the second the secret key.
	KeyFile string `yaml:"key_file"`
	// CAFile has the certificates that sign the server's, in PEM; empty: the system's.
	CAFile string `yaml:"ca_file"`
	// CacheMiB bounds the local copies, but for those in use; 0 = 10240.
	CacheMiB int `yaml:"cache_mib"`
}

// Shared tells whether other gateways may take over from this one.
func (f Files) Shared() bool { return f.Dir != "" || f.S3 != nil }

// FilesDir is the folder of files on this machine.
func (c *Config) FilesDir() string {
	if c.Files.Dir != "" {
		return c.Files.Dir
	}
	return c.DataDir
}

// Backends says how the backend processes are watched.
type Backends struct {
	// ProgressTimeout is how long a backend that has work may finish no step of it before it is killed and started again; so is one that says nothing at all for so long, but for at least 5 s and at most 30 s. After a tenth of that new work is refused.
	ProgressTimeout time.Duration `yaml:"progress_timeout"`
}

// Sessions bounds the life of a client that went silent, and what one key may have.
type Sessions struct {
	// ExpireAfter is the time without a heartbeat after which a session without pending work ends. At least 120 s.
	ExpireAfter time.Duration `yaml:"expire_after"`
	// MaxActive bounds the sessions of one key that have not ended, and MaxMemoryMiB what they take in the gateway's memory with their models, sampling sessions and metadata; more are answered 429.
	MaxActive    int `yaml:"max_active"`
	MaxMemoryMiB int `yaml:"max_memory_mib"`
}

// Records says how long is kept what nothing needs any more but people who ask. 0: for ever.
type Records struct {
	// SessionDays is how long after its end a session is listed with its runs; one of which a checkpoint is left stays.
	SessionDays int `yaml:"session_days"`
	// AuditDays is how long audit entries are kept.
	AuditDays int `yaml:"audit_days"`
	// UsageDays is how long usage is kept by hour and session; what is older is kept by day.
	UsageDays int `yaml:"usage_days"`
}

// Training settings.
type Training struct {
	// GapWait is how long a missing sequence number is waited for before it is skipped.
	GapWait time.Duration `yaml:"gap_wait"`
}

// Recovery says how much of the state of runs is written in the background, so that less has to be computed again after a crash.
type Recovery struct {
	// SnapshotEvery and SnapshotOperations say when a run's state is written: after a step, when the last writing is that long or that many operations ago.
	SnapshotEvery      time.Duration `yaml:"snapshot_every"`
	SnapshotOperations int           `yaml:"snapshot_operations"`
	// DiskShare is the part of the time that such writing may take, over all runs.
	DiskShare float64 `yaml:"disk_share"`
}

// Sampling settings.
type Sampling struct {
	// MaxWaiting bounds the sampling requests of one key that are accepted and not finished; more are answered 429.
	MaxWaiting int `yaml:"max_waiting"`
	// MaxPerClient is the number of samples one Tinker client is told to keep in flight.
	MaxPerClient int `yaml:"max_per_client"`
	// SharePrefixes says between whom the beginnings of prompts are computed once: "keys", between requests of the same key, or "all". With "all",
	// cached_tokens and times tell of the prompts of other keys.
	SharePrefixes string `yaml:"share_prefixes"`
	// UnnamedMiB bounds the files of one key's unnamed samplers (save_weights_and_get_sampling_client), which stay until their session ends; beyond it those go that were unused for longest.
	// 0 is a tenth of what is free on the disk when the server starts, and at least 1024.
	UnnamedMiB int `yaml:"unnamed_mib"`
}

// OpenAI settings are of the API under /v1.
type OpenAI struct {
	// ResponsesKeep is how long an answer of /v1/responses that asks for it is stored. 0: none is.
	ResponsesKeep time.Duration `yaml:"responses_keep"`
}

// Scheduling says how work is shared.
type Scheduling struct {
	// Weights are shares by key name: runs of a key with 2 get twice the training tokens of those of one with 1, and its samples twice the places, while both have work. Who is not named has 1.
	Weights map[string]float64 `yaml:"weights"`
}

// Limits bound what keys may have, by name: all keys of one name together. They can be changed while the server runs.
type Limits struct {
	// Default is for every name, Keys for single ones; what a name does not set is as in Default.
	Default Limit            `yaml:"default"`
	Keys    map[string]Limit `yaml:"keys"`
}

// Limit is what one name may have. 0 is no limit, and nil what Limits.Default says, or else no limit.
type Limit struct {
	// Runs that are live at once.
	Runs *int `yaml:"runs"`
	// Samples are the sampling requests of all APIs in flight.
	Samples *int `yaml:"samples"`
	// TrainedTokens and SampledTokens may be used in a minute.
	TrainedTokens *int `yaml:"trained_tokens_per_minute"`
	SampledTokens *int `yaml:"sampled_tokens_per_minute"`
	// CheckpointMiB of checkpoints may be kept.
	CheckpointMiB *int `yaml:"checkpoint_mib"`
	// MetricValues are clients' own numbers that may be kept with runs, live or not.
	MetricValues *int `yaml:"metric_values"`
}

// Of gives the limits of a name with every field set.
func (l Limits) Of(name string) Limit {
	own, zero := l.Keys[name], new(int)
	return Limit{
		cmp.Or(own.Runs, l.Default.Runs, zero), cmp.Or(own.Samples, l.Default.Samples, zero), cmp.Or(own.TrainedTokens, l.Default.TrainedTokens, zero), cmp.Or(own.SampledTokens, l.Default.SampledTokens, zero),
		cmp.Or(own.CheckpointMiB, l.Default.CheckpointMiB, zero), cmp.Or(own.MetricValues, l.Default.MetricValues, zero),
	}
}

// Log settings.
type Log struct {
	Level  string `yaml:"level"`  // debug, info, warn, error
	Format string `yaml:"format"` // text or json
}

// Model is one served base model.
type Model struct {
	// Name is what clients call it.
	Name string `yaml:"name"`
	// Path is a Hugging Face model directory, a name in the local Hugging Face cache, or hf://org/name[@revision].
	Path string `yaml:"path"`
	// Aliases are further names for it.
	Aliases []string `yaml:"aliases"`
	// TokenizerID is what the Tinker SDK loads its tokenizer from: a Hugging Face name or a directory on the client's machine; empty: the directory of Path when the
	// server listens on loopback, else Name.
	TokenizerID string `yaml:"tokenizer_id"`
	// Chat says what the plain name means under /v1: "base", or "latest", the newest adapter of the caller's key.
	Chat string `yaml:"chat"`
	// ToolFormat is how the model writes tool calls; empty: as its chat template shows, "none": not at all.
	ToolFormat string `yaml:"tool_format"`
	// ExportNames are the names of exported tensors: "peft" or "tinker".
	ExportNames string `yaml:"export_names"`
	// Plugin is the backend's program, taken out of the backend section; with Remote empty where it does not matter.
	Plugin string `yaml:"-"`
	// Remote is where the backend runs, taken out of the backend section; nil: it is started by the gateway.
	Remote *Remote `yaml:"-"`
	// Backend is the backend section as JSON, `plugin` included, and without what is in Remote. With several backends it is that of the first, as are Plugin and Remote.
	Backend json.RawMessage `yaml:"backend"`
	// Replicas is how many backends of the section Backend the model has. Sections are those of backends that differ, in the place of Backend and Replicas.
	Replicas int               `yaml:"replicas"`
	Sections []json.RawMessage `yaml:"backends"`
	// Pool has the backends where there are several; empty: one.
	Pool []Backend `yaml:"-"`
}

// AddAliases gives the only model further names.
func (c *Config) AddAliases(names []string) {
	c.Added = names
	if len(c.Models) == 1 {
		c.Models[0].Aliases = append(c.Models[0].Aliases, names...)
	}
}

// Default gives a configuration without models.
func Default() Config {
	return Config{
		Listen:   "127.0.0.1:8000",
		DataDir:  "data",
		Store:    Store{Driver: "sqlite", ReserveMiB: 64},
		Backends: Backends{ProgressTimeout: 5 * time.Minute},
		Sessions: Sessions{ExpireAfter: 5 * time.Minute, MaxActive: 10000, MaxMemoryMiB: 64},
		Records:  Records{SessionDays: 90, AuditDays: 90, UsageDays: 30},
		Training: Training{GapWait: 2 * time.Second},
		Recovery: Recovery{SnapshotEvery: time.Minute, SnapshotOperations: 50, DiskShare: 0.1},
		Sampling: Sampling{MaxWaiting: 20000, MaxPerClient: 2000, SharePrefixes: "keys"},
		OpenAI:   OpenAI{ResponsesKeep: 30 * 24 * time.Hour},
		Log:      Log{Level: "info", Format: "text"},
	}
}

// DefaultModel gives the defaults of one entry of models.
func DefaultModel() Model {
	return Model{Chat: "base", ExportNames: "peft", Replicas: 1, Plugin: "single", Backend: json.RawMessage(`{"plugin":"single"}`)}
}
