// Package grammar constrains what a model may sample. A Grammar is a context-free language whose terminals are regular languages of text; compiled for a
// vocabulary it says, after every token, which tokens may come next: exactly those after which some finite text of the language can still follow.
//
// A Builder makes grammars, Encode and Decode carry them between processes, Compile prepares one for a vocabulary, and a Matcher follows one sequence.
//
// What a Matcher answers is a pure function of the grammar, the vocabulary and the tokens accepted so far. Caches are shared by all matchers of a grammar
// and change no answer; limits count states and steps, never time, and whether one is met does not depend on other matchers either.
//
// The package knows bytes and token ids. It must not know JSON Schema, chat formats, models or how tokens are drawn.
package grammar
