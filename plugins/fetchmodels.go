package plugins

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// hubScheme begins the name of a model that is downloaded.
const hubScheme = "hf://"

// fetchModels puts directories in place of models of a hub. A backend speaks no HTTP: the gateway's program, which a release has in the folder above the plugins', finds each model in the Hugging Face cache or downloads it, and
// shows on standard error how far it is. SIGTERM and ctrl-C end that.
func fetchModels(models []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	for i, model := range models {
		if !strings.HasPrefix(model, hubScheme) {
			continue
		}
		program, err := gatewayProgram()
		if err != nil {
			return fmt.Errorf("model %s: %w", model, err)
		}
		slog.Info("a model is looked for or downloaded", "model", model)
		var out bytes.Buffer
		fetch := exec.CommandContext(ctx, program, "fetch", "--", model)
		fetch.Cancel = func() error { return fetch.Process.Signal(syscall.SIGTERM) }
		fetch.Stdout, fetch.Stderr = &out, os.Stderr
		if err := fetch.Run(); err != nil {
			return fmt.Errorf("model %s: %s fetch: %w", model, program, err)
		}
		dir := strings.TrimSuffix(out.String(), "\n")
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
			return fmt.Errorf("model %s: %s fetch gave %.200q, which is no directory", model, program, dir)
		}
		slog.Info("a model is there", "model", model, "directory", dir)
		models[i] = dir
	}
	return nil
}

// gatewayProgram is the program tinsmith of the release that this program is of, or else that of PATH.
func gatewayProgram() (string, error) {
	const name = "tinsmith"
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(filepath.Dir(self)), name)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
			return beside, nil
		}
	}
	program, err := exec.LookPath(name)
	if err != nil {
		return "", errors.Join(errors.New("it is downloaded by the program tinsmith, which is neither in the folder above this program's nor in PATH"), err)
	}
	return program, nil
}
