package tinker

import (
	"bytes"
	"errors"

	"github.com/tinsmith/tinsmith/gateway/internal/body"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire"
	"github.com/tinsmith/tinsmith/plugins"
)

func (s *Service) forwardBackward(c call) (any, error) { return s.pass(c, wire.ForwardBackward) }

// forward is what clients call before 0.22.3; newer ones send a forward_backward that is forward only.
func (s *Service) forward(c call) (any, error) { return s.pass(c, wire.Forward) }

// pass takes protobuf or JSON. What is wrong with the data fails the future and not the submission: a refused chunk would jam older clients.
func (s *Service) pass(c call, pass wire.Pass) (any, error) {
	b, err := c.claim.Read(c.Request, plugins.MaxBodyBytes)
	if err != nil {
		return nil, err
	}
	var op runs.ForwardBackward
	if isJSON(c, b) {
		op, err = wire.DecodeForwardBackwardJSON(b, pass, c.claim.Take)
	} else {
		op, err = wire.DecodeForwardBackward(b, c.claim.Take)
		op.ForwardOnly = op.ForwardOnly || pass == wire.Forward
	}
	var full *body.Error
	if errors.As(err, &full) {
		return nil, err
	}
	if err != nil {
		return nil, badRequestf("%v", err)
	}
	op.Owner = c.owner
	submitted, err := s.core.ForwardBackward(c, op)
	return accepted(submitted, err)
}

const (
	jsonType     = "application/json"
	protobufType = "application/x-protobuf"
)

// isJSON tells the two kinds of body apart. A client that names neither, as curl does, is believed if its body begins as an object does; no message begins so.
func isJSON(c call, b []byte) bool {
	switch c.ContentType() {
	case jsonType:
		return true
	case protobufType:
		return false
	}
	return bytes.HasPrefix(bytes.TrimLeft(b, " \t\r\n"), []byte("{"))
}
