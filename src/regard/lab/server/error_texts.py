"""The errors of the lab in both languages.

`TEXTS` pairs the English message of an error, with `{}` where a value stands, with its Chinese text, where `{0}` is the
first value. An error from elsewhere (a damaged file, a model that cannot be loaded) gets the Chinese text of its class,
and a page shows the English message below it.
"""

from __future__ import annotations

import re
from functools import cache

from ...errors import BadInput, Missing, RegardError, TooLarge, Unsupported
from ..library import NotFound

TEXTS = {
    # the server
    "This lab answers to {} only; the request was for {}.": "这个实验室只响应 {0}；请求的是 {1}。",
    "A page of {} may not call this lab. Open {} itself.": "{0} 的页面不能调用这个实验室，请直接打开 {1}。",
    "The token is missing or wrong. Open the URL that `regard lab` printed.": (
        "缺少令牌或令牌不对。请打开 `regard lab` 打印的网址。"
    ),
    "There is no file {} in this page.": "没有名为 {0} 的文件。",
    "The upload is empty. Choose a file.": "上传的文件是空的，请重新选择。",
    "There is no such job; it may have ended long ago.": "没有这个任务，它可能早已结束。",
    "There is nothing at {} for {}.": "{0} 不存在，或不接受 {1} 请求。",
    "The lab failed: {}. Its terminal shows where.": "实验室出错：{0}。运行它的终端里有详细信息。",
    "The client disconnected.": "客户端已断开。",
    "The job was cancelled.": "任务已取消。",
    "There is not enough memory. Give a shorter text, or use a pooled map.": "内存不足。请缩短文本，或使用池化的图。",
    "There is no page {}. There are: {}.": "没有名为 {0} 的页面。现有：{1}。",
    "The page {} has no call {}. It has: {}.": "页面 {0} 没有名为 {1} 的调用。现有：{2}。",
    "The request has more than {} MiB, the most that is taken. Send a smaller file or text.": (
        "请求超过了 {0} MiB 的上限，请换一个较小的文件或文本。"
    ),
    "The body is not JSON. Send one JSON object.": "请求体不是 JSON，应为一个 JSON 对象。",
    "The body is a {}; it must be one JSON object.": "请求体是 {0}，应为一个 JSON 对象。",
    "{} requests are running or waiting, which is the limit. Try again when some have finished.": (
        "已有 {0} 个请求在运行或排队，达到上限。请稍后再试。"
    ),
    "A page needs its state, an object, and its asks, a list of at most {}.": (
        "保存视图需要 state（对象）和 asks（最多 {0} 项的列表）。"
    ),
    "An ask is {}; it must have a path, such as heads/run, and a body.": (
        "asks 中有一项是 {0}；每项都要有 path（如 heads/run）和 body。"
    ),
    "The file would have {} bytes; the limit is {}. Show fewer tokens or heads.": (
        "文件将有 {0} 字节，上限是 {1}。请减少词元或头。"
    ),
    "The page's index.html has no {}, so it cannot be made into one file.": (
        "页面的 index.html 里没有 {0}，无法合成一个文件。"
    ),
    'The lab needs starlette and uvicorn: pip install "regard[lab]".': (
        '实验室需要 starlette 和 uvicorn：pip install "regard[lab]"。'
    ),
    # fields of a request
    "{} is {}; there are {}, so it must be a whole number from 0 to {}.": (
        "{0} 是 {1}；共有 {2} 个，应为 0 到 {3} 的整数。"
    ),
    "{} is {}; it must be [first, after the last] within 0 … {}.": "{0} 是 {1}；应为 0 … {2} 之内的 [起点, 终点)。",
    "{} is {}; it must be a whole number of at least 0.": "{0} 是 {1}；应为不小于 0 的整数。",
    "{} is {}; it must be a whole number, or left out.": "{0} 是 {1}；应为整数，或不填。",
    "shape is {}; it must be [rows, columns], each 1 to {}.": "shape 是 {0}；应为 [行数, 列数]，各为 1 到 {1}。",
    "The seed is {}; it must be a whole number of at least 0.": "随机种子是 {0}；应为不小于 0 的整数。",
    "edits is {}; it must be a list of objects with attention, head and change.": (
        "edits 是 {0}；应为列表，每项含 attention、head 和 change。"
    ),
    "An edit is {}; it must have attention (a number or a name) and head (a number).": (
        "一项修改是 {0}；应含 attention（编号或名称）和 head（编号）。"
    ),
    "An edit is {}; it must have attention (a name), head (a number) and change.": (
        "一项修改是 {0}；应含 attention（名称）、head（编号）和 change。"
    ),
    "An edit is {}; its change must be a name or a list of rows of weights.": (
        "一项修改是 {0}；change 应为名称，或逐行的权重列表。"
    ),
    "sides is {}; it must be a list of two, such as {}.": "sides 是 {0}；应为两项的列表，例如 {1}。",
    "The weights of an edit are not a list of numbers ({}).": "修改的权重不是数字列表（{0}）。",
    "An edit gives query {} {} weights; there are {} queries and {} keys.": (
        "一项修改给了查询 {0} {1} 个权重；共有 {2} 个查询、{3} 个键。"
    ),
    "The region has more than {} cells. Request fewer rows or keys, or a pooled map.": (
        "这个区域超过 {0} 格。请减少行或键，或使用池化的图。"
    ),
    "{} keys were requested with their vectors; the limit is {}. Request fewer.": (
        "请求了 {0} 个键及其向量，上限是 {1}。请减少。"
    ),
    "stage is {}; it must be one of {}.": "stage 是 {0}；应为以下之一：{1}。",
    "The input is {}; it must be an object, such as {}.": "输入是 {0}；应为对象，例如 {1}。",
    # models and files
    "There is no model {} in the lab's folders. There are: {}. Start the lab with --models DIR to give it another "
    "folder.": "实验室的文件夹里没有模型 {0}。现有：{1}。启动实验室时可用 --models 指定其他文件夹。",
    "{} has no example {}. It has: {}.": "{0} 没有示例 {1}。现有：{2}。",
    "{} is for long texts. Open it on the page Long text.": "{0} 用于长文本，请在“长文本”页打开。",
    "{} cannot be used: {}": "{0} 无法使用：{1}",
    "{} is a link to a file outside {}, so it is not read. Copy the file into the folder, or give --models a folder "
    "that holds both.": "{0} 是指向 {1} 之外的链接，因此不读取。请把文件复制进来，或用 --models 指定包含两者的文件夹。",
    "That upload is no longer in memory. Upload the file again.": "上传的文件已不在内存中，请重新上传。",
    "The input is {}; this model reads a file: give upload, example or base64.": (
        "输入是 {0}；这个模型读取文件：请给出 upload、example 或 base64。"
    ),
    "The input's base64 cannot be read. Upload the file instead.": "输入的 base64 无法解码，请改为上传文件。",
    "{} is not a folder. Give --models a folder that has models or runs in it.": (
        "{0} 不是文件夹。--models 应为存放模型或训练运行的文件夹。"
    ),
    "preprocessor_config.json: image_mean and image_std cannot be used ({}). Give one number per channel.": (
        "preprocessor_config.json：image_mean 和 image_std 无法使用（{0}）。每个通道应有一个数。"
    ),
    "preprocessor_config.json: {} is {}; it must be a whole number of at least 1.": (
        "preprocessor_config.json：{0} 是 {1}；应为不小于 1 的整数。"
    ),
    # texts
    "This model reads a text; the input is {}. Give it as input.text.": (
        "这个模型读取文本，而输入是 {0}。请用 input.text 给出文本。"
    ),
    "The text is empty. Enter a sentence, or choose an example.": "文本是空的。请输入一句话，或选择一个示例。",
    "The text contains an unpaired surrogate. Enter it again.": "文本含有不成对的代理字符，请重新输入。",
    "The text contains no words. Enter a sentence.": "文本里没有词，请输入一句话。",
    "The text has one character; give at least two.": "文本只有一个字符，至少要两个。",
    "{} has {} characters; this page takes at most {}. Shorten it, or open it on the page Long text.": (
        "文本有 {1} 个字符，本页最多 {2} 个。请缩短，或在“长文本”页打开。"
    ),
    "{} has {} characters; the limit is {}. Shorten it.": "文本有 {1} 个字符，上限是 {2}。请缩短。",
    "The recording has {} tokens; {}": "录音有 {0} 个词元，超过了上限。请剪短。",
    "{} has {} tokens; this page takes at most {}. Shorten it, or open it on the page Long text.": (
        "文本有 {1} 个词元，本页最多 {2} 个。请缩短，或在“长文本”页打开。"
    ),
    "{} has {} tokens; a model takes at most {} at once. Shorten it, or let it be read by windows.": (
        "文本有 {1} 个词元，模型一次最多读 {2} 个。请缩短，或改为分窗口阅读。"
    ),
    "{} has {} tokens; the limit is {}. Shorten it.": "文本有 {1} 个词元，上限是 {2}。请缩短。",
    "This run reads words by their features and has no tokenizer. Train it again.": (
        "这个训练运行按特征读词，却没有分词器，请重新训练。"
    ),
    "The folder of this model has no tokenizer. Add the tokenizer files.": "模型文件夹里没有分词器，请补上分词器文件。",
    "target is {}; it must be a text, or token ids below {}.": "target 是 {0}；应为文本，或小于 {1} 的词元编号。",
    # recordings, images, graphs
    "Recordings are read by runs of `regard train` and by Whisper's checkpoints; this folder does not say how frames "
    "are computed.": "只有 `regard train` 的训练运行和 Whisper 检查点能读录音；这个文件夹没有说明如何计算帧。",
    "The recording is {} s long; this model takes at most {} s. Cut it.": (
        "录音长 {0} 秒，这个模型最多读 {1} 秒。请剪短。"
    ),
    "This model does not divide images into patches or cells, so there is no grid to show.": (
        "这个模型不把图像切成图块或网格，没有可画的网格。"
    ),
    "This model reads texts alone. Choose one that reads images.": "这个模型只读文本，请选择能读图像的模型。",
    "This model reads no images. Choose one that does.": "这个模型不读图像，请选择能读图像的模型。",
    "This model reads no recordings. Choose one that does.": "这个模型不读录音，请选择能读录音的模型。",
    "This model reads no graphs. Choose one that does.": "这个模型不读图，请选择能读图的模型。",
    "The lab reads models of Regard; this one is a {}.": "实验室只能读取 Regard 的模型；这个是 {0}。",
    "The image has {} tokens; rollout takes at most {}. Use larger patches.": (
        "图像有 {0} 个词元，rollout 最多算 {1} 个。请使用更大的图块。"
    ),
    "This model does not read molecules. Give a graph: nodes and edges, or a file.": (
        "这个模型不读分子。请给出图：节点和边，或一个文件。"
    ),
    "The nodes are {}; wanted 1 to {} of them with {} features each.": (
        "节点是 {0}；应有 1 到 {1} 个，每个 {2} 个特征。"
    ),
    "An edge names node {}; there are {}, 0 … {}.": "有一条边指向节点 {0}；共有 {1} 个节点，0 … {2}。",
    "Only runs of `regard train` read graph files. Give nodes and edges instead.": (
        "只有 `regard train` 的训练运行能读图文件。请改为给出节点和边。"
    ),
    "The graph is not a list of pairs of whole numbers with features ({}).": "图应为整数对的列表和特征（{0}）。",
    "The graph has nodes 0 … {}; got node {}.": "图的节点是 0 … {0}，而请求的是节点 {1}。",
    "hops is {}; it must be 1 or 2.": "hops 是 {0}；应为 1 或 2。",
    "This model of tables has no head. Train it with `regard train table`.": (
        "这个表格模型没有输出层，请用 `regard train table` 训练。"
    ),
    # attentions and attribution
    "There are attentions 0 … {}; got {}.": "注意力的编号是 0 … {0}，而请求的是 {1}。",
    "{} has heads 0 … {}; got head {}.": "{0} 的头是 0 … {1}，而请求的是头 {2}。",
    "{} has {} {}; got {} {} to {}.": "{0} 有 {1} 个{2}，而请求的是 {4} 到 {5}。",
    "{} uses {}, which computes no weight matrix, so there is nothing to show.": (
        "{0} 使用 {1}，它不计算权重矩阵，没有可显示的内容。"
    ),
    "{} ran with a batch of {}; the lab shows one input at a time.": "{0} 的批大小是 {1}；实验室一次只显示一个输入。",
    "Head {} of {} is edited; a pooled view shows the model's own weights.": (
        "{1} 的头 {0} 已被修改；池化的图只显示模型自己的权重。"
    ),
    "{} has no known output projection, so the norms cannot be computed.": "{0} 没有已知的输出投影，无法计算范数。",
    "{} has no graph as its mask, so there are no edges. Request its map instead.": (
        "{0} 的掩码不是图，因此没有边。请改看它的权重图。"
    ),
    "beams is {} and penalty {}; give a whole number and one from 0 to 5.": (
        "beams 是 {0}，penalty 是 {1}；前者应为整数，后者应为 0 到 5 的数。"
    ),
    "{} reads {} and generates no text. Choose a model that reads a text or a recording and generates a text.": (
        "{0} 读取 {1}，但不生成文本。请选择由文本或录音生成文本的模型。"
    ),
    "This model has no cross-attention. Choose an encoder-decoder model.": (
        "这个模型没有交叉注意力，请选择编码器-解码器模型。"
    ),
    "{} beams were requested; it must be 1 to {}.": "束宽是 {0}；应为 1 到 {1}。",
    "The ablation is {}; here it must be {}.": "消融方式是 {0}；这里应为 {1}。",
    "No attention of this model follows the edges, so there are no neighbours to attribute to.": (
        "这个模型没有沿边的注意力，无法归因到邻居。"
    ),
    "There is no node {}; the graph has {}, 0 … {}.": "没有节点 {0}；图有 {1} 个节点，0 … {2}。",
    "Node {} has no incoming edge, so it attends to nothing. Choose another node.": (
        "节点 {0} 没有入边，什么也不关注。请选择其他节点。"
    ),
    "The change is {}; it must be one of {}.": "修改方式是 {0}；应为以下之一：{1}。",
    "This is an ensemble of {} models, and attribution follows the attention of a single one. Inspect its heads, or "
    "train with ensemble=1 and nb_linear=0.": (
        "这是由 {0} 个模型组成的集成，而归因只跟踪单个模型的注意力。可以查看它的头，或用 ensemble=1、nb_linear=0 训练。"
    ),
    "The model reads {}, of which no units can be ablated.": "模型读取 {0}，其中没有可消融的单元。",
    "The text has {} tokens; each is ablated once, so the limit is {}. Give a shorter one.": (
        "文本有 {0} 个词元；每个都要消融一次，所以上限是 {1}。请缩短。"
    ),
    "This model has no self-attention over its input. Choose another model.": (
        "这个模型对输入没有自注意力，请选择其他模型。"
    ),
    "There is no position {}; the prediction has {}, 0 … {}.": "没有位置 {0}；预测有 {1} 个位置，0 … {2}。",
    "There is no label {}; the model has {}, 0 … {}.": "没有标签 {0}；模型有 {1} 个标签，0 … {2}。",
    "All heads together have {} weights on this input; {} fit in memory. Give a smaller input, or a smaller model.": (
        "所有头在这个输入上共有 {0} 个权重，内存只容得下 {1} 个。请换较小的输入或模型。"
    ),
    "The input has more than {} tokens. Give a shorter one, or let examples be counted.": (
        "输入超过 {0} 个词元。请缩短，或改为统计示例。"
    ),
    "No attention of this model leads from {} to {}.": "这个模型没有从 {0} 到 {1} 的注意力。",
    "{} is {}; it must be a list of 1 to {} different tokens.": "{0} 是 {1}；应为 1 到 {2} 个不同词元的列表。",
    "The two texts have no word in common. Compare them by place instead.": "两个文本没有相同的词，请改为按位置比较。",
    "{} is {}; it must be an object with model, input, attention and head.": (
        "{0} 是 {1}；应为包含 model、input、attention 和 head 的对象。"
    ),
    "A text has more than {} tokens, the most that is compared. Shorten it.": (
        "有一个文本超过 {0} 个词元，这是比较的上限，请缩短。"
    ),
    "alignment is {}; it must be one of {}.": "alignment 是 {0}；应为下列之一：{1}。",
    "There is no forward pass to read roles from. Give at least one.": "要判断头的作用，至少需要一次前向计算。",
    "The forward passes are of different models. Give those of one.": "这些前向计算来自不同的模型，应为同一个模型。",
    # mechanisms, course, experiments, runs
    "sizes is {}; it must be an object of {}.": "sizes 是 {0}；应为含 {1} 的对象。",
    "{} has more than {} numbers in q or k. Use fewer heads, tokens or dims.": (
        "{0} 的 q 或 k 超过 {1} 个数。请减少头、词元或维度。"
    ),
    "{} is {}; it must be a part, such as Causal(), of at most {} characters.": (
        "{0} 是 {1}；应为部件，例如 Causal()，最多 {2} 个字符。"
    ),
    "{} is {}; numbers must be at most {}.": "{0} 是 {1}；数不能超过 {2}。",
    "position is {}; in a call Rotary takes only base and dim.": "position 是 {0}；这里的 Rotary 只接受 base 和 dim。",
    "The dictionary needs a query and 1 to 32 entries: {}.": "字典需要一个查询和 1 到 32 个词条：{0}。",
    "The values of the dictionary and its sharpness must be numbers.": "字典的值和逆温度必须是数。",
    "{} is {}; it must be a whole number from 1 to {}.": "{0} 是 {1}；应为 1 到 {2} 的整数。",
    "values is {}; it must be an object of controls and their values.": "values 是 {0}；应为控件及其值的对象。",
    "language is {}; it must be en or zh.": "language 是 {0}；应为 en 或 zh。",
    "name is {}; it must be verses, course or source.": "name 是 {0}；应为 verses、course 或 source。",
    "There are no figures in {}; wanted: {}.": "没有语言为 {0} 的图；应为 {1}。",
    "There is no saved result of {}. Run the experiment first.": "实验 {0} 没有保存的结果，请先运行。",
    "The result of {} has no figure and no numbers. Run the experiment first.": (
        "实验 {0} 的结果没有图也没有数字，请先运行。"
    ),
    "size is {}; wanted: {}.": "size 是 {0}；应为 {1}。",
    "{} is {}; wanted: a number.": "{0} 是 {1}；应为数。",
    "settings is a {}; wanted: an object of names and numbers.": "settings 是 {0}；应为名称与数值的对象。",
    "The experiment {} ended without a result. `regard experiment run {}` shows why.": (
        "实验 {0} 没有得到结果就结束了。运行 `regard experiment run {1}` 可查看原因。"
    ),
    "There is no run {} in the lab's folders. There are: {}.": "实验室的文件夹里没有训练运行 {0}。现有：{1}。",
    # what is read outside the lab
    "The picture {}": "这个文件无法作为图像读取。",
    "The recording {}": "这个文件无法作为录音读取。",
    "The graph {}": "这个文件无法作为图读取。",
}

CLASSES: dict[type[Exception], str] = {
    NotFound: "没有找到所请求的内容。",
    Unsupported: "这个模型不支持此操作。",
    TooLarge: "结果太大，放不进内存。请缩小输入。",
    Missing: "缺少一个需要的软件包。",
    BadInput: "模型、文件或请求中的某个值无法使用。",
    RegardError: "请求失败。",
}
"""The Chinese text of an error whose message is not in `TEXTS`."""


@cache
def patterns() -> list[tuple[str, re.Pattern[str]]]:
    """Each message as a pattern, those with more fixed text first."""
    ordered = sorted(TEXTS, key=lambda message: -len(message.replace("{}", "")))
    return [(message, re.compile(re.escape(message).replace(r"\{\}", "(.*?)"), re.DOTALL)) for message in ordered]


def translate(message: str, error: type[BaseException] = RegardError) -> dict[str, str]:
    """The message in both languages: its own Chinese text, or that of the error's class.

    >>> translate("The graph has nodes 0 … 33; got node 40.")["zh"]
    '图的节点是 0 … 33，而请求的是节点 40。'
    """
    for template, pattern in patterns():
        found = pattern.fullmatch(message)
        if found is not None:
            return {"en": message, "zh": TEXTS[template].format(*found.groups())}
    return {"en": message, "zh": next((CLASSES[c] for c in error.__mro__ if c in CLASSES), CLASSES[RegardError])}
