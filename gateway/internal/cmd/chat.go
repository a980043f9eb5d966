package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/sashabaranov/go-openai"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func chatCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "chat [QUESTION]", Short: "Talk to a model or an adapter in the terminal",
		Long: "Talk to a model or an adapter in the terminal. With a question there is one answer and the end; else every line is a turn. " +
			"The arrow keys move in the line and through earlier ones; ctrl-C ends an answer, and at the prompt the conversation, as ctrl-D and an empty line do.",
		Args: cobra.MaximumNArgs(1),
	}
	conn := addConnection(c)
	model := c.Flags().String("model", "", "a base model, NAME:latest, tinker://RUN, or tinker://RUN/sampler_weights/NAME (default: the first model served)")
	system := c.Flags().String("system", "", "system message")
	temperature := c.Flags().Float32("temperature", 0, "0 = the likeliest answer (default: the model's own)")
	c.RunE = func(c *cobra.Command, args []string) error {
		config := openai.DefaultConfig(conn.key)
		config.BaseURL = conn.url + "/v1"
		config.HTTPClient = undirected{}
		t := &conversation{client: openai.NewClientWithConfig(config), out: c.OutOrStdout(), errors: c.ErrOrStderr()}
		var err error
		if t.request.Model, err = servedModel(c.Context(), conn, *model); err != nil {
			return err
		}
		if c.Flags().Changed("temperature") {
			t.request.Temperature = *temperature
			if *temperature == 0 {
				t.request.Temperature = 1e-45 // the client library leaves a plain 0 out of the request
			}
		}
		if *system != "" {
			t.request.Messages = []openai.ChatCompletionMessage{{Role: openai.ChatMessageRoleSystem, Content: *system}}
		}
		terminal := false // what is printed goes there, and must not control it
		if out, ok := t.out.(*os.File); ok && term.IsTerminal(int(out.Fd())) {
			t.out, terminal = shown{out}, true
		}
		ctx := c.Context()
		switch in, ok := c.InOrStdin().(*os.File); {
		case len(args) == 1:
			return t.turn(ctx, args[0])
		case ok && terminal && term.IsTerminal(int(in.Fd())):
			// From here on an interrupt ends an answer, not the program.
			signal.Reset(os.Interrupt, syscall.SIGTERM)
			var stop context.CancelFunc
			ctx, stop = signal.NotifyContext(context.WithoutCancel(ctx), syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			t.in, t.person = newTyped(in, os.Stdout), true
			fmt.Fprintf(t.out, "talking to %s; an empty line or ctrl-D ends\n", t.request.Model)
		default:
			t.in = newPiped(c.InOrStdin())
		}
		return t.run(ctx)
	}
	return c
}

// servedModel checks that a server knows a model, and gives the first one it serves for "".
func servedModel(ctx context.Context, conn *connection, model string) (string, error) {
	if model != "" {
		var answer struct {
			ID string `json:"id"`
		}
		return model, conn.call(ctx, http.MethodGet, "/v1/models/"+url.PathEscape(model), nil, &answer)
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := conn.call(ctx, http.MethodGet, "/v1/models", nil, &list); err != nil {
		return "", err
	}
	if len(list.Data) == 0 {
		return "", errors.New("the server serves no model")
	}
	return list.Data[0].ID, nil
}

// conversation is a chat that grows with every turn.
type conversation struct {
	client  *openai.Client
	request openai.ChatCompletionRequest
	in      prompter
	out     io.Writer
	errors  io.Writer
	person  bool // who is typing, and may interrupt an answer, or say something else after an error
}

func (t *conversation) run(ctx context.Context) error {
	for {
		text, err := t.in.line(ctx)
		if errors.Is(err, io.EOF) || err == nil && strings.TrimSpace(text) == "" {
			return nil
		}
		if err == nil {
			err = t.turn(ctx, text)
		}
		if err != nil && (!t.person || ctx.Err() != nil) {
			return err
		}
		if err != nil {
			fmt.Fprintln(shown{t.errors}, "tinsmith:", err)
		}
	}
}

// turn says something and prints the answer. What fails is not part of the conversation; what is interrupted is, as far as it came.
func (t *conversation) turn(ctx context.Context, text string) error {
	before := t.request.Messages
	t.request.Messages = append(before[:len(before):len(before)], openai.ChatCompletionMessage{Role: openai.ChatMessageRoleUser, Content: text})
	interruptible := ctx
	if t.person {
		var stop context.CancelFunc
		interruptible, stop = signal.NotifyContext(ctx, os.Interrupt)
		defer stop()
	}
	answer, err := t.answer(interruptible)
	if err != nil && interruptible.Err() != nil && ctx.Err() == nil {
		fmt.Fprintln(t.out, " …")
		err = nil
	}
	if err != nil || answer == "" {
		t.request.Messages = before
		return err
	}
	t.request.Messages = append(t.request.Messages, openai.ChatCompletionMessage{Role: openai.ChatMessageRoleAssistant, Content: answer})
	return nil
}

// answer prints the reply as it comes and returns it whole, with an error as far as it came.
func (t *conversation) answer(ctx context.Context) (string, error) {
	stream, err := t.client.CreateChatCompletionStream(ctx, t.request)
	if err != nil {
		return "", err
	}
	defer stream.Close()
	var whole strings.Builder
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			fmt.Fprintln(t.out)
			return whole.String(), nil
		}
		if err != nil {
			return whole.String(), err
		}
		for _, choice := range part.Choices {
			whole.WriteString(choice.Delta.Content)
			fmt.Fprint(t.out, choice.Delta.Content)
		}
	}
}
