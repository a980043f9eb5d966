package plugins

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/tinsmith/tinsmith/plugins/backendpb"
	"github.com/tinsmith/tinsmith/plugins/transfer"
)

// remote is the side of the backend's machine of what backendpb.Remote serves.
type remote struct {
	backendpb.UnimplementedRemoteServer
	host   *hosted
	leases *leases
	files  *hostedFiles
	life   *life         // this process
	expiry time.Duration // of a lease that is not renewed
	models []string      // that may be loaded; none: any directory
}

// maxModelFiles bounds the files of a claim.
const maxModelFiles = 16

// Hello implements backendpb.RemoteServer.
func (r *remote) Hello(context.Context, *backendpb.HelloRequest) (*backendpb.HelloResponse, error) {
	return &backendpb.HelloResponse{Process: r.life.Process, EndedOutside: r.life.Outside}, nil
}

// Attach implements backendpb.RemoteServer.
func (r *remote) Attach(stream grpc.BidiStreamingServer[backendpb.AttachRequest, backendpb.AttachResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	claim := first.GetClaim()
	one, err := r.claim(stream.Context(), claim)
	if err != nil {
		slog.Warn("a gateway was refused", "gateway", bounded(claim.GetGateway()), "lease", claim.GetNumber(), "error", err)
		return toStatus(err)
	}
	slog.Info("a gateway has the backend", "gateway", one.Gateway, "lease", one.Number)
	why := r.hold(one, stream)
	slog.Info("a lease ended", "gateway", one.Gateway, "lease", one.Number, "error", why)
	one.end(why)
	r.leases.finishing.Go(func() { r.leases.finish(one, why) }) // the gateway is told at once
	return toStatus(context.Cause(one.ctx))
}

// claim checks what a gateway wants and gives it the lease.
func (r *remote) claim(ctx context.Context, c *backendpb.AttachRequest_Claim) (*lease, error) {
	info, err := r.host.Info(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case c == nil:
		return nil, Invalidf("claim", "is missing: it comes first")
	case c.GetProtocolVersion() != int64(Handshake.ProtocolVersion):
		return nil, unavailablef("the gateway speaks protocol version %d and the backend %d: both must be of one release", c.GetProtocolVersion(), Handshake.ProtocolVersion)
	case c.GetNumber() == 0:
		return nil, Invalidf("claim.number", "0 is not allowed: at least 1")
	case c.GetPlugin() != "" && c.GetPlugin() != info.Plugin:
		return nil, Invalidf("config.plugin", "%.100q is not what is served there: that is %q", c.GetPlugin(), info.Plugin)
	}
	if err := checkID("claim.gateway", c.GetGateway()); err != nil {
		return nil, err
	}
	dir, err := r.model(c)
	if err != nil {
		return nil, err
	}
	return r.leases.take(holder{c.GetNumber(), bounded(c.GetGateway())}, dir)
}

// model is the directory that a gateway may load, and has the gateway's own files of the model.
func (r *remote) model(c *backendpb.AttachRequest_Claim) (string, error) {
	dir := c.GetModelDir()
	switch {
	case dir == "" && len(r.models) == 1:
		dir = r.models[0]
	case dir == "":
		return "", Invalidf("config.model", "is required: the backend was started for %d models; it is a directory of its machine", len(r.models))
	case !filepath.IsAbs(dir) || filepath.Clean(dir) != dir:
		return "", Invalidf("config.model", "%.200q is not allowed: a clean absolute path of the backend's machine", dir)
	case len(r.models) > 0 && !slices.Contains(r.models, dir):
		return "", Invalidf("config.model", "%.200q is not a model that the backend was started for: %s", dir, strings.Join(r.models, ", "))
	}
	if n := len(c.GetModelFiles()); n > maxModelFiles {
		return "", Invalidf("claim.model_files", "%d are too many: at most %d", n, maxModelFiles)
	}
	for _, f := range c.GetModelFiles() {
		if err := transfer.CheckName(f.GetName()); err != nil {
			return "", Invalidf("claim.model_files", "%v", err)
		}
		sum, err := ModelFileHash(filepath.Join(dir, f.GetName()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the weights alone may be here, and what lacks for loading them is told by the load
		}
		if err != nil {
			return "", Invalidf("config.model", "%v", err)
		}
		if !bytes.Equal(sum, f.GetSha256()) {
			return "", Invalidf("config.model", "%s in %s is not the gateway's file of that name (SHA-256 %.6x, the gateway's %.6x): the two have different models", f.GetName(), dir, sum, f.GetSha256())
		}
	}
	return dir, nil
}

// hold keeps a lease while it is renewed, and tells why it is not any more.
func (r *remote) hold(one *lease, stream grpc.BidiStreamingServer[backendpb.AttachRequest, backendpb.AttachResponse]) error {
	grant := &backendpb.AttachResponse_Grant{Process: r.life.Process, BootId: r.host.boot(), LeaseNanos: int64(r.expiry)}
	if err := stream.Send(&backendpb.AttachResponse{Grant: grant}); err != nil {
		return lostf("the stream of lease %d broke: %v", one.Number, err)
	}
	over := time.AfterFunc(r.expiry, func() { one.end(lostf("lease %d was not renewed for %v", one.Number, r.expiry)) })
	defer over.Stop()
	renewals := make(chan error)
	go func() { // ends with the stream, and with the lease
		for {
			_, err := stream.Recv()
			select {
			case renewals <- err:
			case <-one.ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	leaving, left := r.leases.leaving, false
	for {
		select {
		case <-leaving:
			leaving, left = nil, true
			if err := stream.Send(&backendpb.AttachResponse{Leaving: true}); err != nil {
				return lostf("the stream of lease %d ended: %v", one.Number, err)
			}
		case err := <-renewals:
			if err == nil {
				over.Reset(r.expiry)
				err = stream.Send(&backendpb.AttachResponse{Leaving: left})
			}
			if err != nil {
				return lostf("the stream of lease %d ended: %v", one.Number, err)
			}
		case <-one.ctx.Done():
			return context.Cause(one.ctx)
		}
	}
}

// ModelFileHash is the SHA-256 of one of a model's small files, such as its tokenizer. Links are followed: that is how the Hugging Face cache keeps them.
func ModelFileHash(path string) ([]byte, error) {
	info, err := os.Stat(path) // before it is opened: opening a pipe would wait
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	h := sha256.New()
	if _, err := io.Copy(h, in); err != nil {
		return nil, err
	}
	return h.Sum(nil), nil
}
