package cmd

import (
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"gopkg.in/yaml.v3"

	"github.com/tinsmith/tinsmith/gateway/internal/config"
)

const (
	repositoryRoot = "../../.."
	inContainer    = "/opt/tinsmith/" // where the image has the repository's configs
)

// composition is what our files have of the compose specification; whatever else is in them is an error.
type composition struct {
	Name     string
	Services map[string]service
	Volumes  map[string]struct{}
}

type service struct {
	Image       string
	Build       struct{ Context, Target string }
	User        string
	Entrypoint  []string
	Command     []string
	NetworkMode string `yaml:"network_mode"`
	Environment map[string]string
	Ports       []string
	Volumes     []string
	Healthcheck struct {
		Test              []string
		Interval, Timeout string
		Retries           int
	}
	DependsOn map[string]struct{ Condition string } `yaml:"depends_on"`
	Grace     string                                `yaml:"stop_grace_period"`
	Restart   string
	Deploy    struct {
		Resources struct {
			Reservations struct {
				Devices []struct {
					Driver, Count string
					Capabilities  []string
				}
			}
		}
	}
}

// readStrictly decodes a YAML file of the repository, which may have nothing that the type has not.
func readStrictly(t *testing.T, file string, into any) {
	t.Helper()
	f, err := os.Open(filepath.Join(repositoryRoot, file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	decoder := yaml.NewDecoder(f)
	decoder.KnownFields(true)
	if err := decoder.Decode(into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func readComposition(t *testing.T) composition {
	t.Helper()
	var c composition
	readStrictly(t, "configs/compose.yaml", &c)
	return c
}

// mounted is where a service has a file of the repository, by its path there; "" for none.
func (s service) mounted(t *testing.T, inside string) string {
	t.Helper()
	for _, v := range s.Volumes {
		if parts := strings.Split(v, ":"); parts[1] == inside {
			return filepath.Join("configs", parts[0])
		}
	}
	t.Errorf("nothing is mounted at %s", inside)
	return ""
}

func TestCompose(t *testing.T) {
	c := readComposition(t)
	if len(c.Services) != 5 {
		t.Errorf("%d services", len(c.Services))
	}
	pinned := regexp.MustCompile(`^[a-z/]+:v?\d+\.\d+(\.\d+)?(-[a-z]+)?$`)
	used := map[string]bool{}
	for name, s := range c.Services {
		if s.Image != "tinsmith" && !pinned.MatchString(s.Image) {
			t.Errorf("%s: image %s has no exact version", name, s.Image)
		}
		if (s.Image == "tinsmith") != (s.Build.Context == "..") {
			t.Errorf("%s: only our image is built here", name)
		}
		for _, port := range s.Ports {
			if !regexp.MustCompile(`^127\.0\.0\.1:\d+:\d+$`).MatchString(port) {
				t.Errorf("%s: port %s is open to others", name, port)
			}
		}
		for _, v := range s.Volumes {
			parts := strings.Split(v, ":")
			if strings.HasPrefix(parts[0], "./") {
				if info, err := os.Stat(filepath.Join(repositoryRoot, "configs", parts[0])); err != nil || !info.Mode().IsRegular() || len(parts) != 3 || parts[2] != "ro" {
					t.Errorf("%s: %s is no file that is only read: %v", name, v, err)
				}
				continue
			}
			used[parts[0]] = true
			if _, declared := c.Volumes[parts[0]]; !declared {
				t.Errorf("%s: volume %s is not declared", name, v)
			}
			if parts[0] == "secrets" && name != "secrets" && (len(parts) != 3 || parts[2] != "ro") {
				t.Errorf("%s may write to the secrets", name)
			}
		}
		for other, on := range s.DependsOn {
			o, there := c.Services[other]
			ours := o.Image == "tinsmith" // it has a health check of its own
			if !there || on.Condition == "service_healthy" && len(o.Healthcheck.Test) == 0 && !ours || on.Condition == "service_completed_successfully" && o.Restart != "" {
				t.Errorf("%s waits for %s until %s", name, other, on.Condition)
			}
		}
		for key, value := range s.Environment {
			if regexp.MustCompile("PASSWORD|SECRET|TOKEN").MatchString(key) && !strings.HasPrefix(value, "/secrets/") {
				t.Errorf("%s: %s is not read from a file", name, key)
			}
		}
	}
	for volume := range c.Volumes {
		if !used[volume] {
			t.Errorf("volume %s is not used", volume)
		}
	}
	var gpu composition
	readStrictly(t, "configs/compose.gpu.yaml", &gpu)
	dockerfile, err := os.ReadFile(filepath.Join(repositoryRoot, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range gpu.Services {
		if _, there := c.Services[name]; !there || !strings.Contains(string(dockerfile), " AS "+s.Build.Target+"\n") || s.Image != "tinsmith:"+s.Build.Target {
			t.Errorf("with GPUs %s is built as %+v", name, s.Build)
		}
	}
	if d := gpu.Services["tinsmith"].Deploy.Resources.Reservations.Devices; len(d) != 1 || !slices.Contains(d[0].Capabilities, "gpu") {
		t.Errorf("the devices are %+v", d)
	}
}

// TestComposeStarts: what the services are given is what the programs take. Ours are the real parsers; the database's address is read by its driver.
func TestComposeStarts(t *testing.T) {
	c := readComposition(t)
	s := c.Services["tinsmith"]
	if len(s.Command) == 0 || s.Command[0] != "serve" {
		t.Fatalf("it starts %v", s.Command)
	}
	serve := serveCommand(Program{})
	if err := serve.ParseFlags(s.Command[1:]); err != nil {
		t.Fatal(err)
	}
	inside := serve.Flag("config").Value.String()
	file := s.mounted(t, inside)
	if inside != inContainer+file {
		t.Errorf("%s is mounted over another file than that of the image, %s", file, inside)
	}

	// The tree of the container, with the secrets as its script makes them.
	tree := t.TempDir()
	secrets := filepath.Join(tree, "secrets")
	make := c.Services["secrets"]
	script := filepath.Join(repositoryRoot, strings.TrimPrefix(make.Entrypoint[1], inContainer))
	if make.Entrypoint[0] != "/bin/sh" || make.Entrypoint[2] != "/secrets" || make.NetworkMode != "none" {
		t.Errorf("the secrets are made by %v", make.Entrypoint)
	}
	run := func() map[string]string {
		if out, err := exec.Command("/bin/sh", script, secrets).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		files := map[string]string{}
		entries, err := os.ReadDir(secrets)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			b, err := os.ReadFile(filepath.Join(secrets, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			files[e.Name()] = string(b)
		}
		return files
	}
	made := run()
	for name, again := range run() {
		if made[name] != again {
			t.Errorf("a second start changes %s", name)
		}
	}
	if len(made) != 3 || made["postgres"] == made["grafana"] || len(made["postgres"]) != 48 {
		t.Errorf("the secrets are %d files", len(made))
	}
	text, err := os.ReadFile(filepath.Join(repositoryRoot, file))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(tree, "configs", "compose"), 0o700); err != nil {
		t.Fatal(err)
	}
	models, err := filepath.Abs(filepath.Join(repositoryRoot, "configs", "models"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(models, filepath.Join(tree, "configs", "models")); err != nil {
		t.Fatal(err)
	}
	placed := filepath.Join(tree, file)
	if err := os.WriteFile(placed, []byte(strings.ReplaceAll(string(text), "/secrets/", secrets+"/")), 0o600); err != nil {
		t.Fatal(err)
	}
	key := keyCommand()
	key.SetArgs([]string{"add", "default", "--admin", "--file", filepath.Join(tree, "data", "keys")}) // as the image's entry point does
	key.SetOut(&strings.Builder{})
	if err := os.MkdirAll(filepath.Join(tree, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := key.Execute(); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(placed)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.DataDir != filepath.Join(tree, "data") || cfg.Auth.KeysFile != filepath.Join(tree, "data", "keys") || cfg.Listen != "0.0.0.0:8000" || cfg.Store.Driver != "postgres" {
		t.Errorf("the configuration is %+v", cfg)
	}
	address, err := os.ReadFile(cfg.Store.URLFile)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := pgx.ParseConfig(strings.TrimSpace(string(address)))
	if err != nil {
		t.Fatal(err)
	}
	database := c.Services["postgres"]
	if parsed.Host != "postgres" || parsed.User != database.Environment["POSTGRES_USER"] || parsed.Database != database.Environment["POSTGRES_DB"] || parsed.Password != made[filepath.Base(database.Environment["POSTGRES_PASSWORD_FILE"])] {
		t.Errorf("the database's address is %s:%d %s", parsed.Host, parsed.Port, parsed.Database)
	}
	if _, there := made[filepath.Base(c.Services["grafana"].Environment["GF_SECURITY_ADMIN_PASSWORD__FILE"])]; !there {
		t.Error("Grafana's password is not among the secrets")
	}
}

// TestObserved: what Prometheus asks is there, and Grafana asks that Prometheus.
func TestObserved(t *testing.T) {
	c := readComposition(t)
	var prometheus struct {
		Global struct {
			Interval string `yaml:"scrape_interval"`
			Timeout  string `yaml:"scrape_timeout"`
		}
		Scrape []struct {
			Job    string                       `yaml:"job_name"`
			Static []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	watching := c.Services["prometheus"]
	inside, found := strings.CutPrefix(watching.Command[0], "--config.file=")
	if !found {
		t.Fatalf("Prometheus starts with %v", watching.Command)
	}
	readStrictly(t, watching.mounted(t, inside), &prometheus)
	if target := prometheus.Scrape[0].Static[0].Targets[0]; target != "tinsmith:8000" {
		t.Errorf("Prometheus asks %s", target)
	}
	drawing := c.Services["grafana"]
	var sources struct {
		Version int `yaml:"apiVersion"`
		Sources []struct {
			Name, UID, Type, Access, URL string
			Default                      bool              `yaml:"isDefault"`
			Data                         map[string]string `yaml:"jsonData"`
		} `yaml:"datasources"`
	}
	readStrictly(t, drawing.mounted(t, "/etc/grafana/provisioning/datasources/tinsmith.yaml"), &sources)
	if u, err := url.Parse(sources.Sources[0].URL); err != nil || c.Services[u.Hostname()].Image == "" || u.Port() != "9090" {
		t.Errorf("Grafana asks %s", sources.Sources[0].URL)
	}
	var boards struct {
		Version   int `yaml:"apiVersion"`
		Providers []struct {
			Name, Type string
			Updates    bool `yaml:"allowUiUpdates"`
			Options    struct{ Path string }
		}
	}
	readStrictly(t, drawing.mounted(t, "/etc/grafana/provisioning/dashboards/tinsmith.yaml"), &boards)
	home := drawing.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	if filepath.Dir(home) != boards.Providers[0].Options.Path {
		t.Errorf("the first dashboard, %s, is not provisioned", home)
	}
	file := drawing.mounted(t, home)
	b, err := os.ReadFile(filepath.Join(repositoryRoot, file))
	if err != nil {
		t.Fatal(err)
	}
	type ofSource struct{ Type, UID string }
	var board struct {
		UID, Title string
		Templating struct {
			List []struct {
				Name       string
				Datasource ofSource
				Query      struct{ Query string }
			}
		}
		Panels []struct {
			ID         int
			Title      string
			Datasource ofSource
			GridPos    struct{ X, Y, W, H int }
			Targets    []struct{ Expr, RefID string }
		}
	}
	if err := json.Unmarshal(b, &board); err != nil {
		t.Fatal(err)
	}
	served := servedMetrics(t)
	source := ofSource{"prometheus", sources.Sources[0].UID}
	for _, v := range board.Templating.List {
		if v.Datasource != source {
			t.Errorf("variable %s asks %+v", v.Name, v.Datasource)
		}
		checkMetrics(t, served, "variable "+v.Name, v.Query.Query)
	}
	places, ids := map[[2]int]bool{}, map[int]bool{}
	for _, p := range board.Panels {
		place := [2]int{p.GridPos.X, p.GridPos.Y}
		if p.Datasource != source || places[place] || ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 || len(p.Targets) == 0 {
			t.Errorf("panel %q: %+v", p.Title, p)
		}
		places[place], ids[p.ID] = true, true
		for _, target := range p.Targets {
			checkMetrics(t, served, p.Title, target.Expr)
		}
	}
	if len(board.Panels) < 10 {
		t.Errorf("%d panels", len(board.Panels))
	}
}

// checkMetrics demands that a query names only metrics that are served, and labels that they have.
func checkMetrics(t *testing.T, served map[string]bool, what, query string) {
	t.Helper()
	functions := []string{"rate", "increase", "sum", "histogram_quantile", "label_values"}
	labels := []string{"model", "le", "http_route", "http_response_status_code"}
	bare := regexp.MustCompile(`"[^"]*"|\[[^]]*\]|\$[a-z_]+`).ReplaceAllString(query, "")
	found := 0
	for _, m := range regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`).FindAllString(bare, -1) {
		switch {
		case served[m]:
			found++
		case m == "by", slices.Contains(functions, m), slices.Contains(labels, m):
		default:
			t.Errorf("%s: %s is not served: %s", what, m, query)
		}
	}
	if found == 0 || strings.Count(query, "(") != strings.Count(query, ")") || strings.Count(query, "{") != strings.Count(query, "}") {
		t.Errorf("%s: %s", what, query)
	}
}
