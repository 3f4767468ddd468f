#!/usr/bin/env bash
# The main job, from raw text to predictions, on the files of samples/: each command is printed as you would type it.
# Everything goes into runs/demo, which is replaced when this script made it and refused when it did not.
set -euo pipefail
cd "$(dirname "$0")/.."

demo=runs/demo
mark=$demo/.made-by-demo
if [ -e "$demo" ] && [ ! -e "$mark" ]; then
    echo "$demo exists and was not made by this demo: move it away, then run the demo again" >&2
    exit 2
fi
rm -rf "$demo"
mkdir -p "$demo"
touch "$mark"

# Models as small as these train twice as fast on one thread as on two where the processor has AMX.
if grep -qs amx_bf16 /proc/cpuinfo; then
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
fi

# Prints a heading and a command, then runs the command exactly as printed.
step() {
    printf '\n# %s\n$ %s\n' "$1" "$2"
    eval "$2"
}

step 'A WordPiece vocabulary from raw text: seven English books.' \
    'unmask tokenizer train samples/text/en-books.jsonl --vocab-size 6000 --out runs/demo/tokenizer'

step 'The same text as a token store: tokenized once, for every later run.' \
    'unmask prepare samples/text/en-books.jsonl --tokenizer runs/demo/tokenizer --out runs/demo/store'

step 'What is in that store, and is anything wrong with it? (The whole, with decoded samples, is on the page.)' \
    'unmask doctor runs/demo/store --out runs/demo/store.html | head -n 32'

step 'Pre-training a tiny encoder: masked words, and half of the sequences read from left to right.' \
    'unmask pretrain pretrain/modern_tiny store=runs/demo/store train.tokens=400000 train.save_every=50 train.keep_last=8 --out runs/demo/pretrained'

step 'What that run was.' \
    'unmask info runs/demo/pretrained'

step 'It has seen seven books for a minute. What does it put into a gap?' \
    'unmask fill-mask runs/demo/pretrained "Alice [MASK] not know what to say ." --top-k 3'

step 'From here on the sample encoder: a larger one of its kind, from 202 MB of books and Wikipedia (samples/models/en).' \
    'unmask fill-mask samples/models/en "She opened the [MASK] and went into the house." --top-k 3'

step 'Fine-tuning it to judge whether one sentence follows from another.' \
    'unmask finetune finetune/snli init_from=samples/models/en data.train=samples/tasks/snli/train.jsonl data.dev=samples/tasks/snli/dev.jsonl optimizer.learning_rate=5e-4 train.batch_size=16 train.epochs=3 --out runs/demo/finetuned'

step 'How good is it, on examples it has not seen?' \
    'unmask evaluate runs/demo/finetuned/model --task snli --data samples/tasks/snli/dev.jsonl'

step 'What does it say about a pair of our own?' \
    'echo '\''{"text_a": "Two dogs run along the beach.", "text_b": "The animals are outdoors."}'\'' | unmask predict runs/demo/finetuned/model -'

step 'Another kind of task: the names in tweets, twice with other heads and orders; the two then answer together.' \
    'unmask finetune finetune/wnut17 init_from=samples/models/en data.train=samples/tasks/wnut17/train.conll data.dev=samples/tasks/wnut17/dev.conll optimizer.learning_rate=4e-4 train.batch_size=4 train.epochs=3 search.restarts=2 search.parallel=2 search.ensemble=true --out runs/demo/names 2>&1 | tail -n 4'

step 'Which names do they find?' \
    'echo '\''{"text": "Off to Paris with Anna tomorrow !"}'\'' | unmask predict runs/demo/names/ensemble -'

step 'The encoder alone: how alike are two sentences?' \
    'unmask similarity samples/models/en "Two dogs run along the beach." "A pair of dogs runs by the sea."'

step 'The same in Korean, with the sample encoder for it (samples/models/ko): a gap.' \
    'unmask fill-mask samples/models/ko "그는 대학교를 [MASK] 후 회사에 들어갔다." --top-k 3'

step 'Fine-tuning it on 800 film reviews, and measuring it on 300 others: are they good (1) or bad (0)?' \
    'unmask finetune finetune/nsmc init_from=samples/models/ko data.train=samples/tasks/nsmc/train.tsv data.dev=samples/tasks/nsmc/dev.tsv optimizer.learning_rate=5e-4 train.batch_size=8 train.epochs=2 --out runs/demo/reviews 2>&1 | tail -n 3'

step 'A review of our own.' \
    'echo "정말 재미있게 봤어요. 배우들의 연기도 최고!" | unmask predict runs/demo/reviews -'

cat <<'END'

Done. Open the report.html of runs/demo/pretrained, finetuned, names and reviews in a browser for the curves and the runs,
and runs/demo/store.html for what the model was shown.
`unmask serve` shows all of these models in a browser, and how the first one learnt.
END
