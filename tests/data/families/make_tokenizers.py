"""Makes `qwen2.json`, `llama3.json`, `llama2.json`, `mistral.json` and `tokens.json` again.

    pip install -e '.[golden]' && python tests/data/families/make_tokenizers.py

Four small vocabularies of the kinds that the families use, as `tokenizer.json` files, and the ids that
transformers (and, for Llama 2's kind, SentencePiece itself) give to `TEXTS`.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import LlamaTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer
from transformers.tokenization_utils_base import generate_merges

FOLDER = Path(__file__).parent
CORPUS = """
The river rises in the hills above the village and runs for forty kilometres before it meets the lake.
In spring it carries snow water and moves stones as large as a man's head; in August a child can cross it.
The mill was built where the valley narrows. A weir turns part of the water into a channel, and the channel
keeps it level along the slope until it stands six metres above the wheel. It's 12345.678 o'clock; we'll see,
they'd said, I've been there and we're late. def main(argv):\n    return [x ** 2 for x in range(10)]
naïve café Straße ÜBER größer ПРИВЕТ мир это хорошо 汉字 你好 世界 日本の首都 東京 한국어 αβγ
""".strip()
TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  leading, trailing and   inner spaces  ",
    "tabs\tand\r\nline ends\n\n\n",
    "It's 12345.678 o'clock; WE'LL see, they'd said. I'Ve",
    "nai\u0308ve cafe\u0301 and \ufb01 ligature, \u1e9b\u0323",
    "汉字、ひらがな、カタカナ、한글",
    "🇩🇪 👩\u200d👩\u200d👧 🥞",
    "if (x != 0) { return x->y[i++] << 2; }",
    "ПРИВЕТ мир αβγ ∑∫√ שלום",
    "a" * 40,
    "the the river river",
    "\u0000\u0001\u007f",
]
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def main() -> None:
    tokens = {"texts": TEXTS, "qwen2": _qwen2(), "llama3": _llama3()} | _sentencepiece()
    rows = [f"{json.dumps(name)}:{json.dumps(row, separators=(',', ':'))}" for name, row in tokens.items()]
    (FOLDER / "tokens.json").write_text("{" + ",\n".join(rows) + "}\n")


def _trained(split: str, size: int, normalizer: Any = None) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A byte-level vocabulary and its merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS.splitlines(),
        BpeTrainer(vocab_size=size, initial_alphabet=sorted(alphabet), show_progress=False),
    )
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def _qwen2() -> list[list[int]]:
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    vocab, merges = _trained(PRETOKENIZE_REGEX, 520, normalizers.NFC())
    tokenizer = Qwen2Tokenizer(vocab=vocab, merges=merges)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    tokenizer.backend_tokenizer.save(str(FOLDER / "qwen2.json"), pretty=False)
    return [tokenizer.encode(text) for text in TEXTS]


def _llama3() -> list[list[int]]:
    """Whole words are looked up first (`ignore_merges`): "Hello" is here though no merges lead to it."""
    vocab, merges = _trained(LLAMA3_SPLIT, 480)
    vocab |= {word: len(vocab) + i for i, word in enumerate(["Ġworld", "Hello", "Ġligature"])}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(
        [AddedToken(token, special=True) for token in ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")]
    )
    begin = inner.token_to_id("<|begin_of_text|>")
    inner.post_processor = TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)]
    )
    inner.save(str(FOLDER / "llama3.json"), pretty=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<|begin_of_text|>")
    return [tokenizer.encode(text) for text in TEXTS]


def _sentencepiece() -> dict[str, Any]:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.splitlines()),
        model_writer=written,
        vocab_size=520,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        character_coverage=0.995,
        minloglevel=2,
    )
    stated = sentencepiece_model_pb2.ModelProto.FromString(written.getvalue())
    scores = {piece.piece: piece.score for piece in stated.pieces}
    vocab = {piece.piece: i for i, piece in enumerate(stated.pieces)}
    merges = generate_merges(vocab, scores)
    processor = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    legacy, modern = _llama2(vocab, merges), LlamaTokenizer(vocab=vocab, merges=merges, add_bos_token=True)
    modern.backend_tokenizer.save(str(FOLDER / "mistral.json"), pretty=False)
    chat = "<s>[INST] Hello, river [/INST] the mill</s><s>[INST]  and? [/INST]"
    return {
        "sentencepiece": {
            "pieces": [piece.piece for piece in stated.pieces],
            "scores": [piece.score for piece in stated.pieces],
            "types": [piece.type for piece in stated.pieces],
        },
        "llama2": [[1, *processor.encode(text)] for text in TEXTS],
        "llama2 by transformers": [legacy.encode(text) for text in TEXTS],
        "mistral": [modern.encode(text) for text in TEXTS],
        "chat": chat,
        "llama2 chat": legacy.encode(chat, add_special_tokens=False),
        "mistral chat": modern.encode(chat, add_special_tokens=False),
    }


def _llama2(vocab: dict[str, int], merges: list[tuple[str, str]]) -> PreTrainedTokenizerFast:
    """As Llama 2's own `tokenizer.json`: a normalizer puts a space in front of every text."""
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")]
    )
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(FOLDER / "llama2.json"), pretty=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


if __name__ == "__main__":
    main()
