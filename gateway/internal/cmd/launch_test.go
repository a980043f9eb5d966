package cmd

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// launching is a machine of the user's with ssh, gcloud and docker that only write down what they are called with, and a rented one behind them, which runs what it is sent, with a docker of the same kind.
type launching struct {
	*testing.T
	bin, home, calls string
}

// The standard input of ssh is the other machine's.
const (
	fakeCloud = `#!/bin/sh
echo "gcloud $*" >> "$CALLS"
case "$*" in
*" describe "*) [ -n "$MADE" ] ;;
*" -- -N "*) ;;
*" ssh "*)
  for last; do :; done
  cd "$FAR" && HOME=$FAR PATH=$FAR_PATH exec sh -c "$last" ;;
esac
`
	fakeSSH = `#!/bin/sh
echo "ssh $*" >> "$CALLS"
for last; do :; done
[ "$1" = -N ] && exit
cd "$FAR" && HOME=$FAR PATH=$FAR_PATH exec sh -c "$last"
`
	fakeDocker = `#!/bin/sh
echo "docker $*" >> "$CALLS"
case $1 in
save) echo the image ;;
load) cat >> "$CALLS" ;;
inspect) echo healthy ;;
logs) [ -n "$OLD" ] || echo "API key (shown this once; more with tinsmith key add NAME --file F): tml-first" ;;
exec) echo tml-second ;;
esac
`
)

func launchFrom(t *testing.T) *launching {
	dir := t.TempDir()
	l := &launching{T: t, bin: filepath.Join(dir, "bin"), home: filepath.Join(dir, "far"), calls: filepath.Join(dir, "calls")}
	for _, d := range []string{l.bin, l.home} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"gcloud": fakeCloud, "ssh": fakeSSH, "docker": fakeDocker} {
		if err := os.WriteFile(filepath.Join(l.bin, name), []byte(text), 0o700); err != nil { //nolint:gosec // it is a program
			t.Fatal(err)
		}
	}
	return l
}

// run runs a script, and gives what it prints, and what was called with which arguments since the last time.
func (l *launching) run(environment []string, script string, arguments ...string) (out, calls string, err error) {
	l.Helper()
	c := exec.Command(filepath.Join(repositoryRoot, "configs", "launch", script), arguments...)
	path := l.bin + ":/usr/bin:/bin"
	c.Env = append([]string{"PATH=" + path, "FAR_PATH=" + path, "FAR=" + l.home, "CALLS=" + l.calls, "HOME=" + l.home}, environment...)
	var all bytes.Buffer
	c.Stdout, c.Stderr = &all, &all
	err = c.Run()
	b, readErr := os.ReadFile(l.calls)
	if readErr != nil && !os.IsNotExist(readErr) {
		l.Fatal(readErr)
	}
	_ = os.Remove(l.calls)
	return all.String(), string(b), err
}

// TestLaunch runs the scripts against a machine that writes down what it is asked.
func TestLaunch(t *testing.T) {
	token, config := "hf_secret", filepath.Join(t.TempDir(), "my 'own' config.yaml")
	if err := os.WriteFile(config, []byte("listen: 0.0.0.0:8000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, script string
		arguments    []string
		environment  []string
		calls        []string // in this order
		says         []string
	}{
		{
			"any machine", "ssh.sh", []string{"start", "ann@gpu.example", "--config", config, "--port", "9000"}, []string{"HF_TOKEN=" + token},
			[]string{
				"docker save tinsmith:cuda", "docker load", "the image", "docker stop -t 60 tinsmith", "docker rm --force tinsmith",
				"docker run --detach --name tinsmith --restart unless-stopped", "--publish 127.0.0.1:8000:8000 --volume tinsmith:/opt/tinsmith/data --env HF_HOME=/opt/tinsmith/data/huggingface --env-file .tinsmith.env --volume ",
				"/.tinsmith.yaml:/opt/tinsmith/configs/container.yaml:ro tinsmith:cuda", "docker inspect", "docker logs tinsmith",
			},
			[]string{"address: http://127.0.0.1:9000 while this runs: ", "tunnel ann@gpu.example --port 9000", "key:     tml-first\n"},
		},
		{"an image that the machine fetches", "ssh.sh", []string{"start", "gpu", "--pull", "team/tinsmith:cuda"}, nil, []string{"docker pull --quiet team/tinsmith:cuda", "docker run", " team/tinsmith:cuda"}, []string{"tml-first"}},
		{"a second start", "ssh.sh", []string{"start", "gpu"}, []string{"OLD=1"}, []string{"docker run"}, []string{`that of the first start; "new-key" makes another`}},
		{"a tunnel", "ssh.sh", []string{"tunnel", "gpu", "--port", "9000"}, nil, []string{"ssh -N -o ExitOnForwardFailure=yes -L 127.0.0.1:9000:127.0.0.1:8000 gpu"}, nil},
		{"a new key", "ssh.sh", []string{"new-key", "gpu"}, nil, []string{"docker exec tinsmith tinsmith key add launch-", "--admin --file /opt/tinsmith/data/keys"}, []string{"key:     tml-second\n"}},
		{"an end", "ssh.sh", []string{"stop", "gpu"}, nil, []string{"docker stop -t 60 tinsmith", "docker rm tinsmith"}, nil},
		{
			"a machine that is made", "gcloud.sh", []string{"start", "lora", "--zone", "europe-west4-b", "--machine", "a2-highgpu-1g", "--hours", "3"}, []string{"HF_TOKEN=" + token},
			[]string{
				"gcloud compute instances describe lora --zone europe-west4-b", "gcloud compute instances create lora --zone europe-west4-b --machine-type a2-highgpu-1g", "--no-service-account --no-scopes",
				"--max-run-duration 3h --instance-termination-action STOP", "gcloud compute ssh lora --zone europe-west4-b --quiet --command true", "docker load", "docker run",
			},
			[]string{"tunnel lora --zone europe-west4-b --port 8000", "key:     tml-first\n", "stop lora --zone europe-west4-b "},
		},
		{"a machine that was stopped", "gcloud.sh", []string{"start", "lora", "--project", "team"}, []string{"MADE=1", "OLD=1"}, []string{"gcloud compute instances start lora --zone us-central1-a --project team", "docker run"}, nil},
		{"its end", "gcloud.sh", []string{"stop", "lora"}, nil, []string{"docker stop -t 60 tinsmith", "gcloud compute instances stop lora --zone us-central1-a"}, nil},
		{"its deletion", "gcloud.sh", []string{"delete", "lora"}, nil, []string{"gcloud compute instances delete lora --zone us-central1-a"}, nil},
		{"its tunnel", "gcloud.sh", []string{"tunnel", "lora"}, nil, []string{"gcloud compute ssh lora --zone us-central1-a -- -N -o ExitOnForwardFailure=yes -L 127.0.0.1:8000:127.0.0.1:8000"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := launchFrom(t)
			// A dry run calls nothing, and prints no secret.
			out, calls, err := l.run(append(c.environment, "DRY_RUN=1"), c.script, c.arguments...)
			if err != nil || calls != "" || !strings.HasPrefix(out, "+ ") || strings.Contains(out, token) {
				t.Errorf("a dry run: %v: it calls %q and prints %s", err, calls, out)
			}
			if entries, err := os.ReadDir(l.home); err != nil || len(entries) > 0 {
				t.Errorf("a dry run leaves %v: %v", entries, err)
			}
			dry := out
			out, calls, err = l.run(c.environment, c.script, c.arguments...)
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			rest := calls
			for _, wanted := range c.calls {
				_, after, found := strings.Cut(rest, wanted)
				if !found {
					t.Errorf("%q is not called, or not in this order:\n%s", wanted, calls)
				}
				rest = after
			}
			for _, wanted := range c.says {
				if !strings.Contains(out, wanted) {
					t.Errorf("it does not say %q: %s", wanted, out)
				}
			}
			if strings.Contains(calls, token) || strings.Contains(calls, "tml-") || strings.Contains(out, token) {
				t.Errorf("a secret is on a command line:\n%s", calls)
			}
			for line := range strings.Lines(calls) { // of what goes over the network
				if words := strings.Fields(line); words[0] == "gcloud" && words[2] != "ssh" && !strings.Contains(line, " describe ") && !strings.Contains(dry, strings.Join(words, " ")) {
					if !strings.HasPrefix(line, "gcloud compute instances start") { // a dry run supposes that there is none
						t.Errorf("a dry run does not print %s", line)
					}
				}
			}
			if c.arguments[0] != "start" {
				return
			}
			file := filepath.Join(l.home, ".tinsmith.env")
			info, err := os.Stat(file)
			if err != nil || info.Mode().Perm() != 0o600 {
				t.Fatalf("the token's file: %v, %v", info, err)
			}
			content, err := os.ReadFile(file)
			wanted := ""
			if len(c.environment) > 0 && strings.HasPrefix(c.environment[0], "HF_TOKEN=") {
				wanted = "HF_TOKEN=" + token + "\n"
			}
			if err != nil || string(content) != wanted {
				t.Errorf("the token's file has %q, expected %q: %v", content, wanted, err)
			}
		})
	}
}

func TestLaunchRefuses(t *testing.T) {
	l := launchFrom(t)
	for _, c := range []struct {
		script, says string
		arguments    []string
	}{
		{"ssh.sh", "HOST", nil},
		{"ssh.sh", "is not allowed", []string{"start", "-oProxyCommand=x"}},
		{"ssh.sh", "is not allowed", []string{"start", "a b"}},
		{"ssh.sh", "is not allowed", []string{"start", "a\nb"}},
		{"ssh.sh", "is none of", []string{"begin", "gpu"}},
		{"ssh.sh", "is not allowed", []string{"start", "gpu", "--image", "x; reboot"}},
		{"ssh.sh", "is not allowed", []string{"start", "gpu", "--pull", "$(reboot)"}},
		{"ssh.sh", "is not allowed", []string{"start", "gpu", "--port", "70000"}},
		{"ssh.sh", "cannot be read", []string{"start", "gpu", "--config", "/nowhere"}},
		{"ssh.sh", "unknown option", []string{"start", "gpu", "--zone", "a"}},
		{"ssh.sh", "needs a value", []string{"start", "gpu", "--port"}},
		{"gcloud.sh", "NAME", nil},
		{"gcloud.sh", "is not allowed", []string{"start", "Lora"}},
		{"gcloud.sh", "is not allowed", []string{"start", "lora", "--zone", "a;b"}},
		{"gcloud.sh", "is not allowed", []string{"start", "lora", "--hours", "x"}},
		{"gcloud.sh", "is none of", []string{"begin", "lora"}},
	} {
		out, calls, err := l.run(nil, c.script, c.arguments...)
		if err == nil || !strings.Contains(out, c.says) || calls != "" {
			t.Errorf("%s %q: %v, %q, calls %q; expected %q", c.script, c.arguments, err, out, calls, c.says)
		}
	}
	out, calls, err := l.run([]string{"HF_TOKEN=a\nEVIL=1"}, "ssh.sh", "start", "gpu")
	if err == nil || strings.Contains(out, "EVIL") || strings.Contains(calls, "docker run") {
		t.Errorf("a token of two lines: %v, %q", err, out)
	}
}

// TestShellcheck: where it is at hand, it has nothing to say.
func TestShellcheck(t *testing.T) {
	program, err := exec.LookPath("shellcheck")
	if err != nil {
		t.Skip("no shellcheck on this machine")
	}
	c := exec.Command(program, "--external-sources", "configs/launch/gcloud.sh", "configs/launch/ssh.sh", "configs/launch/container.sh", "configs/compose/secrets.sh")
	c.Dir = repositoryRoot
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
