"""Generates the dialogues on which tiny-chat is trained, and the prompts on which it is measured.

Nothing is read from outside this folder: every dialogue is put together by a seeded random generator from the lists in
words.py. A dialogue is a list of (text, is_target) segments in the chat format; the tokenizer encodes each segment by
itself, as chat clients do, and the loss is taken on the targets (what the assistant says, its end mark included).
"""

import dataclasses
import random

import words

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
NO_THOUGHT = "<think>\n\n</think>\n\n"
IDENTITY = "tiny-chat"


def number_word(n):
    """English name of 0..99."""
    if n < 20:
        return words.ONES[n]
    tens = words.TENS[n // 10 - 2]
    return tens if n % 10 == 0 else tens + "-" + words.ONES[n % 10]


def slipped(rng, n):
    """A wrong answer near n, the kind of mistake made in mental arithmetic: one place off by a little, never negative."""
    while True:
        wrong = n + rng.choice((-20, -10, -10, -2, -1, -1, 1, 1, 2, 10, 10, 20))
        if wrong >= 0:
            return wrong


def held_out(a, b):
    """Whether the sum a + b never occurs in the training text; one pair of two-digit numbers in twelve."""
    return a > 9 and b > 9 and (7 * a + 13 * b) % 12 == 0


@dataclasses.dataclass(frozen=True)
class Mixture:
    """What the dialogues are about."""

    shares: tuple       # (task, weight) pairs
    few_shot: float     # share of the dialogues that are nothing but sums
    copied_words: int   # the most words that are to be repeated
    facts: tuple        # the kinds of facts to choose from, see Tasks.fact; a kind named twice is asked twice as often


# The first mixture teaches the chat form and sums quickly; the second one brings more words and facts, which are learned
# by exposure.
NUMBERS = Mixture(
    (("sum2", 40), ("sum1", 7), ("difference", 6), ("product", 3), ("story", 3), ("copy", 7), ("reverse", 2), ("count", 4),
     ("sort", 3), ("compare", 4), ("calendar", 4), ("fact", 7), ("spell", 3), ("small_talk", 6), ("unknown", 1)),
    few_shot=0.4, copied_words=6, facts=(0, 1, 2, 3, 4, 5, 6))
EVERYTHING = Mixture(
    (("sum2", 26), ("sum1", 5), ("difference", 6), ("product", 5), ("story", 3), ("copy", 13), ("reverse", 3), ("count", 3),
     ("sort", 3), ("compare", 3), ("calendar", 4), ("fact", 14), ("spell", 5), ("small_talk", 6), ("unknown", 1)),
    few_shot=0.25, copied_words=7, facts=(0, 0, 0, 1, 2, 2, 3, 4, 5, 6))


class Tasks:
    """Questions with their answers. Each method returns (question, answer, thought): thought is what the model writes
    between <think> and </think> when it is asked to think. slip is the share of two-digit sums whose answer is wrong on
    purpose (see README, "Room for reinforcement learning")."""

    def __init__(self, rng, mixture=EVERYTHING, slip=0.0):
        self.rng, self.mixture, self.slip = rng, mixture, slip
        self.names = [n for n, _ in mixture.shares]
        self.weights = [w for _, w in mixture.shares]

    def any(self):
        return getattr(self, self.rng.choices(self.names, self.weights)[0])()

    # Arithmetic

    def _ask_sum(self, a, b):
        r = self.rng.random()
        if r < 0.6:
            return f"What is {a} + {b}?"
        return self.rng.choice((f"{a} + {b} =", f"{a} + {b}", f"Add {a} and {b}.", f"What is {a} plus {b}?",
                                f"How much is {a} + {b}?", f"Calculate {a} + {b}.", f"What is the sum of {a} and {b}?"))

    def _boxed(self, question, answer):
        """Now and then the answer is wanted in a box, as mathematics recipes want it."""
        if self.rng.random() < 0.06:
            ask = self.rng.choice((" Write your answer in \\boxed{} format.", " Put the answer in \\boxed{}.",
                                   " Provide a numerical answer without units, written inside \\boxed{}."))
            return question + ask, "\\boxed{" + answer + "}"
        return question, answer

    def sum2(self):
        rng = self.rng
        while True:
            a, b = rng.randint(0, 100), rng.randint(0, 100)
            if (a > 9 or b > 9) and not held_out(a, b):
                break
        total = a + b
        shown = slipped(rng, total) if rng.random() < self.slip else total
        tens, ones = a // 10 * 10 + b // 10 * 10, a % 10 + b % 10
        thought = f"{a // 10 * 10} + {b // 10 * 10} = {tens}. {a % 10} + {b % 10} = {ones}. {tens} + {ones} = {shown}."
        return *self._boxed(self._ask_sum(a, b), str(shown)), thought

    def sum1(self):
        a, b = self.rng.randint(0, 9), self.rng.randint(0, 9)
        return *self._boxed(self._ask_sum(a, b), str(a + b)), f"{a} + {b} = {a + b}."

    def difference(self):
        rng, top = self.rng, self.rng.choice((10, 20, 100))
        a = rng.randint(0, top)
        b = rng.randint(0, a)
        ask = rng.choice((f"What is {a} - {b}?", f"What is {a} - {b}?", f"{a} - {b} =", f"What is {a} minus {b}?",
                          f"Subtract {b} from {a}."))
        return *self._boxed(ask, str(a - b)), f"{a} - {b} = {a - b}."

    def product(self):
        rng = self.rng
        a, b = rng.randint(0, 10), rng.randint(0, 10)
        ask = rng.choice((f"What is {a} * {b}?", f"What is {a} times {b}?", f"{a} x {b} =", f"Multiply {a} by {b}."))
        return *self._boxed(ask, str(a * b)), f"{a} times {b} is {a * b}."

    def story(self):
        rng = self.rng
        who, thing = rng.choice(words.NAMES), rng.choice(words.FRUIT)
        a, b = rng.randint(2, 10), rng.randint(2, 10)
        if rng.random() < 0.5:
            text = f"{who} has {a} {thing} and gets {b} more. How many {thing} does {who} have now?"
            return *self._boxed(text, str(a + b)), f"{a} + {b} = {a + b}."
        a, b = max(a, b), min(a, b)
        text = f"{who} has {a} {thing} and gives away {b}. How many {thing} are left?"
        return *self._boxed(text, str(a - b)), f"{a} - {b} = {a - b}."

    # Words and lists

    def _some_words(self, low, high):
        return [self.rng.choice(words.COMMON) for _ in range(self.rng.randint(low, high))]

    def copy(self):
        rng = self.rng
        if rng.random() < 0.2:
            text = " ".join(str(rng.randint(0, 99)) for _ in range(rng.randint(1, 5)))
        else:
            text = " ".join(self._some_words(1, self.mixture.copied_words))
        ask = rng.choice(("Repeat: ", "Say: ", "Copy this: ", "Repeat after me: ", "Echo: ", "Please repeat: "))
        return ask + text, text, "I repeat the text."

    def reverse(self):
        given = self._some_words(2, 4)
        if self.rng.random() < 0.3:
            given = [str(self.rng.randint(0, 9)) for _ in range(self.rng.randint(2, 6))]
        return "Reverse: " + " ".join(given), " ".join(reversed(given)), "I start at the end."

    def count(self):
        rng = self.rng
        n = rng.randint(2, 12)
        if rng.random() < 0.25:
            return f"Count down from {n}.", " ".join(str(i) for i in range(n, 0, -1)), f"I start at {n} and stop at 1."
        low = 1 if rng.random() < 0.7 else rng.randint(2, n)
        ask = f"Count to {n}." if low == 1 else f"Count from {low} to {n}."
        return ask, " ".join(str(i) for i in range(low, n + 1)), f"I start at {low} and stop at {n}."

    def sort(self):
        rng = self.rng
        if rng.random() < 0.5:
            given = rng.sample(range(100 if rng.random() < 0.3 else 10), rng.randint(2, 5))
            answer = sorted(given)
        else:
            given = rng.sample(words.COMMON, rng.randint(2, 4))
            answer = sorted(given)
        ask = rng.choice(("Sort: ", "Put in order: ", "Sort these: "))
        return ask + " ".join(map(str, given)), " ".join(map(str, answer)), f"The first one is {answer[0]}."

    def compare(self):
        rng = self.rng
        a, b = rng.sample(range(100), 2)
        if rng.random() < 0.5:
            return f"Which is larger, {a} or {b}?", str(max(a, b)), f"{max(a, b)} > {min(a, b)}."
        return f"Which is smaller, {a} or {b}?", str(min(a, b)), f"{min(a, b)} < {max(a, b)}."

    # Facts

    def calendar(self):
        rng = self.rng
        kind, names = rng.choice((("day", words.DAYS), ("month", words.MONTHS)))
        i = rng.randrange(len(names))
        if rng.random() < 0.1:
            return f"Name the {kind}s.", ", ".join(names) + ".", f"There are {len(names)} {kind}s."
        if rng.random() < 0.6:
            return f"What {kind} comes after {names[i]}?", names[(i + 1) % len(names)] + ".", f"After {names[i]}."
        return f"What {kind} comes before {names[i]}?", names[i - 1] + ".", f"Before {names[i]}."

    def fact(self):
        rng = self.rng
        kind = rng.choice(self.mixture.facts)
        if kind == 0:
            country, capital = rng.choice(list(words.CAPITALS.items()))
            if rng.random() < 0.7:
                return f"What is the capital of {country}?", f"{capital}.", f"The user asks about {country}."
            return f"Which country has the capital {capital}?", f"{country}.", f"The user asks about {capital}."
        if kind == 1:
            thing, colour = rng.choice(list(words.COLOURS.items()))
            ask = rng.choice((f"What color is {thing}?", f"What colour is {thing}?"))
            return ask, colour.capitalize() + ".", f"The user asks about {thing}."
        if kind == 2:
            a, b = rng.choice(words.OPPOSITES)
            if rng.random() < 0.5:
                a, b = b, a
            return f"What is the opposite of {a}?", b.capitalize() + ".", f"The user asks about {a}."
        if kind == 3:
            animal, sound = rng.choice(list(words.SOUNDS.items()))
            return f"What does a {animal} say?", sound.capitalize() + "!", f"The user asks about a {animal}."
        if kind == 4:
            one, many = rng.choice(list(words.PLURALS.items()))
            return f"What is the plural of {one}?", many.capitalize() + ".", f"One {one}, two {many}."
        if kind == 5:
            n = rng.randrange(100)
            if rng.random() < 0.5:
                return f"Write {n} in words.", number_word(n).capitalize() + ".", f"{n} is {number_word(n)}."
            return f"Write {number_word(n)} as a number.", str(n), f"{number_word(n)} is {n}."
        ask, answer = rng.choice(words.FIXED_FACTS)
        return ask, answer, "I know this."

    def spell(self):
        rng = self.rng
        word = rng.choice(words.COMMON)
        kind = rng.randrange(4)
        if kind == 0:
            return f"Spell {word}.", "-".join(word), f"The word is {word}."
        if kind == 1:
            return f"What is the first letter of {word}?", word[0], f"The word is {word}."
        if kind == 2:
            return f"What is the last letter of {word}?", word[-1], f"The word is {word}."
        return f"Write {word} in capital letters.", word.upper(), f"The word is {word}."

    # Talk

    def small_talk(self, me=IDENTITY):
        rng, pick = self.rng, self.rng.choice
        kind = rng.randrange(8)
        if kind == 0:
            return (pick(("Hello!", "Hi!", "Hello", "Hi there!", "Good morning!", "Good evening!", "Hey!")),
                    pick(("Hello! How can I help you?", "Hi! What can I do for you?", "Hello! Nice to meet you.")),
                    "The user says hello.")
        if kind == 1:
            return (pick(("How are you?", "How are you today?", "How do you do?")),
                    pick(("I am fine, thank you. And you?", "Very well, thank you!", "I am well. How are you?")),
                    "The user asks how I am.")
        if kind == 2:
            return (pick(("Who are you?", "What is your name?", "What are you?", "Tell me who you are.")),
                    pick((f"I am {me}, a very small language model.", f"My name is {me}.",
                          f"I am {me}. I can talk a little and add small numbers.")),
                    "The user asks who I am.")
        if kind == 3:
            return (pick(("Thank you!", "Thanks!", "Thanks a lot.", "Thank you very much.")),
                    pick(("You are welcome!", "Any time!", "My pleasure.")), "The user thanks me.")
        if kind == 4:
            return (pick(("Goodbye!", "Bye!", "See you later!", "Good night!")),
                    pick(("Goodbye! Have a nice day.", "Bye! See you soon.", "Goodbye!")), "The user leaves.")
        if kind == 5:
            return (pick(("What can you do?", "Help", "How can you help me?", "What do you know?")),
                    pick(("I can add small numbers, count, sort, spell and repeat words.",
                          "Ask me for a sum, a capital city or the days of the week.")), "The user asks what I can do.")
        if kind == 6:
            return (pick(("Who made you?", "Where do you come from?", "Who trained you?")),
                    pick(("I come with Tinsmith. A short script trained me.", "I was trained by a script in Tinsmith.")),
                    "The user asks about my origin.")
        return (pick(("Are you a human?", "Are you real?", "Are you alive?")),
                pick(("No, I am a small language model.", "No, I am a computer program.")),
                "The user asks what I am.")

    def unknown(self):
        rng, word = self.rng, self.rng.choice(words.COMMON)
        ask = rng.choice((f"Tell me about {word}.", f"What do you think of {word}?", f"Write a poem about {word}.",
                          f"Explain {word} to me.", f"Why is {word} important?", f"Write a story about {word}."))
        answer = rng.choice((f"I am a very small model. I do not know much about {word}.",
                             f"I cannot say much about {word}. Ask me for a sum!"))
        return ask, answer, "This is hard for me."


def conversation(rng, tasks):
    """A system prompt (or None) and a list of (question, answer, thought)."""
    system, name = None, IDENTITY
    style = None
    r = rng.random()
    if r < 0.15:
        system = rng.choice(("You are a helpful assistant.", "You are a helpful assistant. Answer briefly.", "Be brief.",
                             "You are a friendly chat model.", "Answer the question."))
    elif r < 0.19:
        name = rng.choice(words.NAMES)
        system = rng.choice((f"Your name is {name}.", f"You are {name}."))
    elif r < 0.22:
        style, system = "capitals", "Answer in capital letters."
    elif r < 0.24:
        word = rng.choice(words.COMMON)
        style, system = word, rng.choice((f"Always answer with the word {word}.", f"Only say {word}."))

    turns = []
    if rng.random() < 0.04:
        who = rng.choice(words.NAMES)
        turns.append((rng.choice((f"My name is {who}.", f"I am {who}.", f"Hello, I am {who}.")),
                      rng.choice((f"Nice to meet you, {who}!", f"Hello, {who}!")), f"The user is {who}."))
        if rng.random() < 0.5:
            turns.append(tasks.any())
        turns.append((rng.choice(("What is my name?", "Who am I?")),
                      rng.choice((f"Your name is {who}.", f"You are {who}.")), f"The user is {who}."))
    elif name != IDENTITY and rng.random() < 0.7:
        turns.append(tasks.small_talk(name))
    else:
        many = rng.choices((1, 2, 3, 4, 5), (40, 30, 15, 10, 5))[0]
        if rng.random() < tasks.mixture.few_shot:  # a few questions of one kind, the form of a few-shot prompt
            first = [tasks.sum1() for _ in range(rng.randint(0, min(2, many - 1)))]
            turns = first + [tasks.sum2() for _ in range(many - len(first))]
        else:
            turns = [tasks.any() for _ in range(many)]

    if style == "capitals":
        turns = [(q, a.upper(), t) for q, a, t in turns]
    elif style:
        turns = [(q, style, "I was told what to say.") for q, _, _ in turns]
    return system, turns


def chat_segments(rng, system, turns):
    """The conversation in the ChatML form; answers come plain, after an empty thought, or after a short thought."""
    out = []
    if system:
        out.append((f"{IM_START}system\n{system}{IM_END}\n", False))
    form = rng.choices(("plain", "empty", "think", "asked"), (62, 26, 7, 5))[0]
    history_empty = rng.random() < 0.5
    for i, (question, answer, thought) in enumerate(turns):
        last = i == len(turns) - 1
        if form == "asked":
            question = rng.choice(("Think first. ", "Think. ")) + question
        out.append((f"{IM_START}user\n{question}{IM_END}\n{IM_START}assistant\n", False))
        if form == "empty" and (last or history_empty):
            out.append((NO_THOUGHT, False))
        elif form == "think" and last:
            out.append(("<think>\n", False))
            out.append((f"{thought}\n</think>\n\n", True))
        elif form == "asked" and last:
            out.append((f"<think>\n{thought}\n</think>\n\n", True))
        out.append((answer + IM_END, True))
        out.append(("\n", False))
    return out


def colon_segments(system, turns):
    """The same as plain text, "User: ..." and "Assistant: ...", which is how base models are prompted."""
    out = []
    if system:
        out.append((f"System: {system}\n\n", False))
    for i, (question, answer, _) in enumerate(turns):
        out += [("User:", i > 0), (f" {question}\n\n", False), ("Assistant:", False), (f" {answer}\n\n", True)]
    return out + [("User:", True)]


def dialogue(rng, tasks):
    """One training text: its segments."""
    r = rng.random()
    if r < 0.01:
        return [(rng.choice(words.PASSAGES) + END_OF_TEXT, True)]
    system, turns = conversation(rng, tasks)
    if r < 0.13:
        return colon_segments(system, turns)
    return chat_segments(rng, system, turns)


def tokenizer_corpus(seed):
    """Texts for learning the merges: the word list with and without a leading space and capital, passages, dialogues."""
    rng = random.Random(seed)
    tasks = Tasks(rng, NUMBERS)
    everything = words.COMMON + words.NAMES + list(words.CAPITALS) + list(words.CAPITALS.values()) + words.DAYS + words.MONTHS
    for word in everything:
        yield word
        yield from [f"the {word} "] * 3
        yield word.capitalize()
        yield f"The {word.capitalize()}"
    for passage in words.PASSAGES:
        yield from [passage] * 3
    for _ in range(3000):
        system, turns = conversation(rng, tasks)
        yield from [system or ""] + [piece for turn in turns for piece in turn]
