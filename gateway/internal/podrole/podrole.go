// Package podrole tells Kubernetes which of several gateways is the active one: a gateway gives its own pod a label, by which a service finds it. It knows one request of Kubernetes' API and nothing else.
package podrole

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Label is the label's name. Its values are the roles.
const Label = "tinsmith.dev/role"

// Role is what a gateway is among several.
type Role string

// The roles.
const (
	Active  Role = "active"  // it serves
	Standby Role = "standby" // it waits for the other's place
)

// EnvPod names the pod of this process. The manifest sets it; without it nothing is told.
const EnvPod = "TINSMITH_POD"

const (
	accountDir = "/var/run/secrets/kubernetes.io/serviceaccount" // where Kubernetes puts an account's files
	maxAnswer  = 4 << 10
	deadline   = 10 * time.Second
	firstPause = 500 * time.Millisecond
	maxPause   = 15 * time.Second
)

// Pod is the pod that this process runs in. Its methods may be called concurrently; nil is a process in none, which tells nobody.
type Pod struct {
	address string // of the pod in the API
	account string // the folder of the account's files; the token in it is renewed
	client  *http.Client

	mu      sync.Mutex
	stop    context.CancelFunc // ends what is being told; nil: nothing ever was
	stopped chan struct{}      // closed when that has ended
}

// Open finds the pod of this process, nil if it runs in none that wants to be told of.
func Open() (*Pod, error) {
	name := os.Getenv(EnvPod)
	if name == "" {
		return nil, nil
	}
	pod, err := open(name, os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"), accountDir)
	if err != nil {
		return nil, fmt.Errorf("%s is set: %w", EnvPod, err)
	}
	return pod, nil
}

func open(name, host, port, account string) (*Pod, error) {
	if host == "" || port == "" {
		return nil, errors.New("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not, so this is no pod of Kubernetes")
	}
	namespace, err := read(account, "namespace")
	if err != nil {
		return nil, err
	}
	authority, err := read(account, "ca.crt")
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(authority)) {
		return nil, fmt.Errorf("%s has no certificate", filepath.Join(account, "ca.crt"))
	}
	return &Pod{
		address: "https://" + net.JoinHostPort(host, port) + "/api/v1/namespaces/" + url.PathEscape(namespace) + "/pods/" + url.PathEscape(name),
		account: account,
		client: &http.Client{
			Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the token is for this address
			Timeout:       deadline,
		},
	}, nil
}

// read gives a small file of the account's without the space around it.
func read(account, file string) (string, error) {
	f, err := os.Open(filepath.Join(account, file))
	if err != nil {
		return "", err
	}
	defer f.Close()
	const most = 1 << 20
	b, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return "", err
	}
	if text := strings.TrimSpace(string(b)); text != "" {
		return text, nil
	}
	return "", fmt.Errorf("%s is empty", f.Name())
}

// Become tells the pod's role in place of the one before, in the background: again and again until that has succeeded or ctx ends. The service does not lead to a gateway that has not told, and nothing else depends on it.
func (p *Pod) Become(ctx context.Context, role Role) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	stop, before := p.stop, p.stopped
	ctx, p.stop = context.WithCancel(ctx)
	stopped := make(chan struct{})
	p.stopped = stopped
	go func() {
		defer close(stopped)
		if stop != nil {
			stop()
			<-before
		}
		p.keep(ctx, role)
	}()
}

// keep tells the role until it is taken, or ctx ends.
func (p *Pod) keep(ctx context.Context, role Role) {
	told := false
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := p.set(ctx, role)
		if err == nil {
			slog.InfoContext(ctx, "the pod has its role", "role", role)
			return
		}
		if ctx.Err() != nil {
			return
		}
		if !told {
			told = true
			slog.WarnContext(ctx, "the pod cannot be given its role, which is tried again: the service does not lead to it as long", "role", role, "error", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// set gives the pod its label.
func (p *Pod) set(ctx context.Context, role Role) error {
	token, err := read(p.account, "token")
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]Role{Label: role}}})
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPatch, p.address, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/merge-patch+json")
	res, err := p.client.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		return nil
	}
	said, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return err
	}
	var answer struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(said, &answer) != nil || answer.Message == "" {
		return fmt.Errorf("patch the pod: status %d", res.StatusCode)
	}
	return fmt.Errorf("patch the pod: status %d: %.500s", res.StatusCode, answer.Message)
}
